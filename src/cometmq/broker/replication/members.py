"""The interfaces between replication and a member of a set (:mod:`cometmq.broker.failover`).

Replication has the sockets, and knows no states: it calls a member's methods, on the event loop, in the order in which
things happen. A connection belongs to the epoch in which the follower has signed in.
"""

from __future__ import annotations

from typing import Protocol

from cometmq.broker.failover.document import Member
from cometmq.broker.failover.history import History


class SetMember(Protocol):
    """The properties of a member that both sides of replication need."""

    @property
    def me(self) -> Member:
        """Return this member."""

    @property
    def set_id(self) -> str:
        """Return the id of the set to which this store belongs."""

    @property
    def heartbeat_s(self) -> float:
        """Return the interval of heartbeats and repeated reports in seconds, a quarter of the lease."""

    @property
    def process(self) -> str:
        """Return the random number that was chosen at the start of this process."""

    @property
    def address(self) -> str:
        """Return this member's ``host:port`` for requests."""

    @property
    def ha_address(self) -> str:
        """Return this member's ``host:port`` for followers."""

    @property
    def known_epoch(self) -> int:
        """Return the highest epoch that this member knows."""

    def epoch_seen(self, epoch: int) -> None:
        """Take note of an epoch that another member of this set has named (``EpochSeen``)."""


class MasterSide(SetMember, Protocol):
    """A member, for the connections of its followers (:mod:`cometmq.broker.replication.ha_service`)."""

    @property
    def epoch(self) -> int:
        """Return the epoch in which this member serves as master, or 0 if it does not."""

    @property
    def confirmed(self) -> int:
        """Return the log offset up to which all counted members have the log."""

    def history(self) -> History:
        """Return the epochs of this member's log."""

    @property
    def counted_others(self) -> frozenset[Member]:
        """Return the members, except this one, for which an acknowledgement waits."""

    def is_in_sync(self, member: Member) -> bool:
        """Return whether a member is in the confirmed in-sync set."""

    def is_named(self, name: str) -> bool:
        """Return whether the set's document names a replica."""

    def holder_of(self, addresses: frozenset[str], name: str) -> str:
        """Return the name of another member that counts or is connected, and has one of these addresses; or empty."""

    def refused(self, name: str, reason: str) -> None:
        """Take note of a refused sign-in for which a person must do something."""

    def signed_in(self, member: Member, address: str, ha_address: str) -> None:
        """Take note of a follower whose log has been compared, and which is sent the rest (``SignedIn``)."""

    def reported(self, member: Member, end: int) -> None:
        """Take note that a follower has the log up to ``end`` (``Reported``)."""

    def lost(self, member: Member) -> None:
        """Take note that a follower's last connection is closed (``ReplicaLost``)."""


class FollowerSide(SetMember, Protocol):
    """A member, for its connection to the master (:mod:`cometmq.broker.replication.member_link`)."""

    @property
    def counted_end(self) -> int:
        """Return the end of the log that may be reported."""

    async def compared(self, epoch: int, masters: History) -> int | None:
        """Compare the log with the master's, and return the log offset from which to copy (``MasterHistory``).

        ``None`` closes the connection: another epoch has begun, or the log must be cut, which closes the store.

        :raises HistoryError: this log cannot continue with the master's.
        """

    def copies(self, epoch: int) -> bool:
        """Return whether bytes from the master of an epoch may be appended and reported."""

    def log_moved(self) -> None:
        """Take note that the log has grown, or was flushed (``LogMoved``)."""

    def heard(self, epoch: int, confirmed: int) -> None:
        """Take note of bytes or a heartbeat from the master (``Heard``)."""

    def link_lost(self, epoch: int, *, is_refused: bool) -> None:
        """Take note that the connection was lost, or could not be made (``LinkLost``).

        :param is_refused: True if the master has closed the connection, and its port refuses now: its process is dead.
        """
