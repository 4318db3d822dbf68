"""The interface of copies of a set's tables, and the check that they come from the present master."""

from __future__ import annotations

from typing import Protocol

from cometmq.broker.limits import SLAVE_TABLE_SECONDS
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.members import FollowerSide
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import SetCopyRequestHeader, SetCopyResponseHeader


class SetCopy(Protocol):
    """A table that the members of a set copy from their master every second, and at a handover."""

    @property
    def name(self) -> str:
        """Return the name of the table, for people."""

    def begin_with_master(self) -> None:
        """Compare everything with another master the next time."""

    async def copy(self, master: str) -> None:
        """Copy the table if it differs.

        :raises ReplicationError: the master does not return it, or it cannot be used or written.
        :raises RemotingError: the master does not answer.
        """


async def asked(
    client: RemotingClient, master: str, code: RequestCode, header: SetCopyRequestHeader, side: FollowerSide
) -> RemotingCommand | None:
    """Ask the master for a table; return ``None`` if it is of an earlier version, which has no such request.

    :raises ReplicationError: the table is that of an earlier master.
    :raises RemotingError: the master does not answer.
    """
    answer = await client.invoke(master, code, header, timeout_s=SLAVE_TABLE_SECONDS)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    if answer.code == ResponseCode.SUCCESS:
        of_epoch(answer.header(SetCopyResponseHeader).epoch, side)
    return answer


def of_epoch(epoch: int, side: FollowerSide) -> None:
    """Check that an answer is that of the master which this member follows.

    :raises ReplicationError: it is that of an earlier master.
    """
    if epoch != side.known_epoch:
        raise ReplicationError(f"the answer is of epoch {epoch}, and this member is in epoch {side.known_epoch}")
