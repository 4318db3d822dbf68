"""One member's view of its set, as tools show it."""

from __future__ import annotations

from typing import Protocol

from cometmq.broker.failover.changes import ChangeLog
from cometmq.broker.failover.document import Document
from cometmq.broker.failover.history import History
from cometmq.broker.failover.machine import MemberMachine
from cometmq.remoting.failover.bodies import (
    FailoverChange,
    FailoverDocument,
    FailoverPresence,
    FailoverProgress,
    FailoverReplica,
    FailoverStatus,
)


class FailoverMember(Protocol):
    """The part of a member that administration and metrics use."""

    @property
    def machine(self) -> MemberMachine:
        """The member's state machine."""

    @property
    def changes(self) -> ChangeLog:
        """The last changes of the set."""

    @property
    def engine_name(self) -> str:
        """The kind of engine, for example ``etcd``."""

    @property
    def trouble(self) -> str:
        """The reason why the member cannot follow its master, or has refused another member; or an empty text."""

    def history(self) -> History:
        """Return the epochs of the own log."""

    async def hand_over(self, to: str, why: str) -> None:
        """Make another member the master: ``to``, or the one that is furthest. Return once it is.

        :raises CommandRefusedError: nobody can take over now, or the handover took too long.
        """

    async def force(self, why: str) -> None:
        """Let this member stand for election although it may lack acknowledged messages.

        :raises CommandRefusedError: the set has a master, or this member cannot stand.
        """

    async def forget(self, name: str) -> None:
        """Remove a replica that never comes back from the document.

        :raises CommandRefusedError: this member is not the master, or the replica is still part of the set.
        """


def status_of(member: FailoverMember, cluster: str, broker_name: str, now: float) -> FailoverStatus:
    """Return a member's view of its set.

    :param now: the monotonic time.
    """
    machine = member.machine
    view = machine.view
    return FailoverStatus(
        cluster=cluster,
        broker_name=broker_name,
        member=str(machine.me),
        address=machine.options.address,
        state=machine.state.value,
        reason=machine.reason,
        since_ms=member.changes.since_ms,
        next_step=machine.next_step,
        refusal=machine.refusal,
        disk_trouble=machine.disk_trouble,
        trouble=member.trouble,
        epoch=machine.epoch,
        log_epoch=machine.log.last_epoch,
        begin=member.history().begin,
        end=machine.log.end,
        flushed=machine.log.flushed,
        confirmed=machine.confirmed,
        engine=member.engine_name,
        engine_trouble=view.trouble,
        min_in_sync=machine.options.min_in_sync,
        priority=machine.options.priority,
        elections=member.changes.elections,
        document=None if view.document is None else _document(view.document),
        presences=[
            FailoverPresence(str(one.member), one.address, one.serves, one.trouble)
            for _, one in sorted(view.presences.items())
        ],
        progress=_progress(machine, now),
        changes=[_change(document) for document in member.changes.documents],
    )


def _progress(machine: MemberMachine, now: float) -> list[FailoverProgress]:
    in_sync = machine.in_sync
    if in_sync is None:
        return []
    return [
        FailoverProgress(
            str(member),
            in_sync.end_of(member),
            in_sync.is_connected(member),
            member in in_sync.counted,
            in_sync.is_late(member, now),
        )
        for member in sorted(in_sync.known)
    ]


def _change(document: Document) -> FailoverChange:
    in_sync = [str(member) for member in sorted(document.in_sync)]
    return FailoverChange(document.epoch, document.serial, str(document.master), in_sync, document.why, document.at_ms)


def _document(document: Document) -> FailoverDocument:
    in_sync = [str(member) for member in sorted(document.in_sync)]
    replicas = [FailoverReplica(one.name, one.address, one.ha_address, one.broker_id) for one in document.replicas]
    return FailoverDocument(
        document.epoch,
        document.serial,
        str(document.master),
        in_sync,
        document.why,
        document.at_ms,
        document.set_id,
        replicas,
    )
