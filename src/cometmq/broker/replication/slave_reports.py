"""The reports of slaves of a master that was made by hand: SYNC_MASTER's answers wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.slaves_in_sync import State
from cometmq.store.message_store import MessageStore


class Reports(Protocol):
    """The meaning of slaves' reports: those of a master made by hand, or of a member of a set."""

    @property
    def losses(self) -> int:
        """Return the number of times that a connected slave has fallen out of sync."""

    def marked(self) -> None:
        """Remember the end of the log, about once per second."""

    def began(self, slave: HAConnection) -> None:
        """Handle a slave's first report.

        :raises ReplicationError: it must not follow any more.
        """

    def reported(self, slave: HAConnection) -> None:
        """Handle a later report.

        :raises ReplicationError: it must not follow any more.
        """

    def lost(self, slave: HAConnection) -> None:
        """Handle the end of a connection that has reported."""

    def sendable_end(self, slave: HAConnection) -> int:
        """Return the log offset up to which a slave may be sent the log."""

    def is_in_sync(self, slave: HAConnection) -> bool:
        """Return whether a slave has every message that was answered as stored."""

    def state_of(self, slave: HAConnection) -> str:
        """Return the state of a slave that has reported, for people."""


class SlaveReports:
    """Passes reports to the answers that wait for slaves."""

    def __init__(self, transfers: GroupTransferService, slaves: Iterable[HAConnection], store: MessageStore) -> None:
        self._transfers: Final = transfers
        self.in_sync: Final = transfers.in_sync
        self._slaves: Final = slaves
        self._store: Final = store

    @property
    def losses(self) -> int:
        """Return the number of times that a connected slave has fallen out of sync."""
        return self.in_sync.removals

    def marked(self) -> None:
        """Remember the end of the log."""
        self._transfers.marked(self._store.max_physical_offset)

    def began(self, slave: HAConnection) -> None:
        """Doubt the other connections from the same address, which may be older connections of the slave."""
        for other in self._slaves:
            if other is not slave and other.peer_ip == slave.peer_ip:
                self._transfers.doubt(other, other.next_offset)
        self.reported(slave)

    def reported(self, slave: HAConnection) -> None:
        """Answer what is confirmed now."""
        self._transfers.reported(slave, slave.ack_offset)

    def lost(self, slave: HAConnection) -> None:
        """Stop waiting for the slave."""
        self._transfers.remove_slave(slave)

    def sendable_end(self, _slave: HAConnection) -> int:
        """Return the end of the log."""
        return self._store.max_physical_offset

    def is_in_sync(self, slave: HAConnection) -> bool:
        """Return whether answers wait for the slave."""
        return self.in_sync.state_of(slave) is State.IN_SYNC

    def state_of(self, slave: HAConnection) -> str:
        """Return the slave's state."""
        state = self.in_sync.state_of(slave)
        return "not in sync" if state is None else state.value
