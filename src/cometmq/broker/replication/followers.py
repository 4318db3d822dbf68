"""A master's connections to the followers of its set, whose reports count; other slaves are learners.

A learner is sent only what is confirmed, because a learner cannot cut its log, and its consumers must not read what may
still vanish. A follower is sent everything at once.

A replica has one connection: the newest. Reports that arrive later on an older one do not count. A connection ends with
the epoch in which the follower signed in.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.failover.document import Member
from cometmq.broker.failover.halts import name_taken
from cometmq.broker.limits import CONFIRMED_NEWS_SECONDS
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.broker.replication.member_sign_in import Follower
from cometmq.broker.replication.members import MasterSide
from cometmq.broker.replication.table_news import TableNews
from cometmq.periodic import Alarm
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_SILENT_HEARTBEATS: Final = 3
"""Number of heartbeats without a report after which a follower is disconnected."""


class Followers:
    """Passes the reports of followers to this process's member, sends heartbeats, and ends silent connections."""

    losses: Final = 0
    """The set's document says who left the in-sync set, and why."""

    def __init__(self, side: MasterSide, store: MessageStore) -> None:
        self._side: Final = side
        self._store: Final = store
        self._clock: Final = store.clock
        self._connections: dict[str, HAConnection] = {}
        """By the name of the replica."""
        self.tables: Final = TableNews(side, store.clock, self._connections)
        """The changes of tables for which answers wait until followers have copied them."""
        self._beat = Alarm(self._send_heartbeats, clock=store.clock)
        self._beat_at = 0.0
        """The time at which the alarm for heartbeats rings."""
        self._news = Alarm(self._tell, clock=store.clock)

    def stop(self) -> None:
        """Send no more heartbeats, and wait for nobody."""
        self.tables.stop()
        self._beat.close()
        self._news.close()

    def marked(self) -> None:
        """Do nothing: the member knows the end of the log."""

    def connection_of(self, member: Member) -> HAConnection | None:
        """Return a follower's connection."""
        slave = self._connections.get(member.name)
        return slave if slave is not None and slave.follower is not None and slave.follower.member == member else None

    # --- events of connections ----------------------------------------------------------------------
    def began(self, slave: HAConnection) -> None:
        """Count a follower from now on; it replaces an earlier connection of the same replica.

        :raises ReplicationError: the epoch is over.
        """
        follower = slave.follower
        if follower is None:
            return
        self._check_epoch(follower)
        name = follower.member.name
        earlier = self._connections.pop(name, None)
        if earlier is not None:
            self._log_twin(earlier, slave)
            earlier.abort()
        self._connections[name] = slave
        self._side.signed_in(follower.member, follower.address, follower.ha_address)
        self.tables.began(slave)
        if not self._beat.is_set:
            self._beat_after_interval()

    def _log_twin(self, earlier: HAConnection, slave: HAConnection) -> None:
        """Warn if two processes seem to have one name: the earlier connection is another process's, and alive."""
        assert earlier.follower is not None
        assert slave.follower is not None
        is_alive = self._clock.monotonic() - earlier.read_at < self._side.heartbeat_s
        if is_alive and earlier.follower.process != slave.follower.process:
            halt = name_taken(slave.follower.member, earlier.follower.address)
            _log.warning("%s; they follow from %s and %s (%s)", halt.reason, earlier, slave, halt.next_step)

    def reported(self, slave: HAConnection) -> None:
        """Pass a follower's report to the member.

        :raises ReplicationError: the epoch is over.
        """
        follower = slave.follower
        if follower is None:
            return
        self._check_epoch(follower)
        slave.counted_end = slave.ack_offset
        self._pass_on(slave, follower.member)

    def tables_copied(self, slave: HAConnection) -> None:
        """Let changes of tables be answered, and let the follower's reports count from now on."""
        self.tables.copied(slave)
        if slave.follower is not None and slave.counted_end >= 0:
            self._pass_on(slave, slave.follower.member)

    def _pass_on(self, slave: HAConnection, member: Member) -> None:
        """Pass on a report, unless the follower might join the in-sync set with old tables."""
        has_tables = slave.tables_copied >= 0 or self._side.is_in_sync(member)
        if has_tables and self._connections.get(member.name) is slave:
            self._side.reported(member, slave.counted_end)

    def _check_epoch(self, follower: Follower) -> None:
        if follower.epoch != self._side.epoch:
            raise ReplicationError(f"epoch {follower.epoch} is over")

    def lost(self, slave: HAConnection) -> None:
        """Tell the member that a follower is gone, unless it has connected again."""
        follower = slave.follower
        if follower is not None and self._connections.get(follower.member.name) is slave:
            del self._connections[follower.member.name]
            self._side.lost(follower.member)
            if not self._connections:
                self._beat.cancel()

    # --- answers for connections --------------------------------------------------------------------
    def sendable_end(self, slave: HAConnection) -> int:
        """Return the end of the log for a follower, and of what is confirmed for a learner."""
        end = self._store.max_physical_offset
        return min(end, self._side.confirmed) if slave.follower is None else end

    def is_in_sync(self, slave: HAConnection) -> bool:
        """Return whether the slave is a member of the confirmed in-sync set."""
        return slave.follower is not None and self._side.is_in_sync(slave.follower.member)

    def state_of(self, slave: HAConnection) -> str:
        """Return whether the slave counts."""
        if slave.follower is None:
            return "a learner"
        return "in sync" if self.is_in_sync(slave) else "not in sync"

    # --- heartbeats ---------------------------------------------------------------------------------
    def tell_soon(self) -> None:
        """Tell followers about a higher confirmed end, unless the next transfers do."""
        if self._connections and not self._news.is_set:
            self._news.after(CONFIRMED_NEWS_SECONDS)

    def _tell(self) -> None:
        for slave in self._connections.values():
            if slave.told_confirmed < self._side.confirmed:
                slave.heartbeat()

    def _beat_after_interval(self) -> None:
        self._beat_at = self._clock.monotonic() + self._side.heartbeat_s
        self._beat.after(self._side.heartbeat_s)

    def _send_heartbeats(self) -> None:
        now, heartbeat_s = self._clock.monotonic(), self._side.heartbeat_s
        was_paused = now - self._beat_at > heartbeat_s / 2
        for slave in list(self._connections.values()):
            if was_paused:  # their reports may wait to be read
                slave.read_at = now
            assert slave.follower is not None
            if now - slave.read_at > _SILENT_HEARTBEATS * max(heartbeat_s, slave.follower.heartbeat_s):
                _log.warning("closing the connection of member %s: silent for %g s", slave, now - slave.read_at)
                slave.abort()
            else:
                slave.heartbeat()
        self._beat_after_interval()
