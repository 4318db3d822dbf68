"""Requests to the members of a set: their status, handover, and an election forced by a person."""

from __future__ import annotations

from cometmq.client.admin.quotas import QuotaAdmin
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.failover.bodies import FailoverStatus
from cometmq.remoting.failover.headers import ForceMasterRequestHeader, HandOverRequestHeader


class FailoverAdmin(QuotaAdmin):
    """Asks single members; :mod:`cometmq.client.admin.failover.sets` finds them and combines their answers."""

    async def failover_status(self, address: str, *, timeout_s: float | None = None) -> FailoverStatus:
        """Return a member's view of its set.

        :param timeout_s: seconds for the request; by default those of all requests.
        :raises BrokerError: code 3: the broker has no failover.
        """
        code, doing = RequestCode.GET_FAILOVER_STATUS, "requesting the status of failover"
        answer = await self.instance.call(address, code, doing=doing, timeout_s=timeout_s or self._timeout_s)
        return decode_body(FailoverStatus, answer.body)

    async def hand_over(self, address: str, broker_name: str, *, to: str = "", why: str = "") -> None:
        """Ask a set's master to make another member the master: ``to``, or the one that is furthest.

        The answer comes when it is done; if the connection is lost before, it may be done nevertheless.

        :raises BrokerError: code 2012: nobody can take over, or the broker is not the master.
        """
        header = HandOverRequestHeader(broker_name, to, why)
        await self._call(address, RequestCode.HAND_OVER, header, doing="handing over")

    async def force_master(self, address: str, header: ForceMasterRequestHeader) -> None:
        """Let a member stand for election although it may lack acknowledged messages.

        :raises BrokerError: code 2012: the set has a master; code 29: the member or the epoch is not as named.
        """
        await self._call(address, RequestCode.FORCE_MASTER, header, doing="forcing an election")
