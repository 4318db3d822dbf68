"""The short way of a steady master's events that only move the end of a log.

A master gets two of them for each turn of messages: its log has grown, and a replica has reported. While nobody joins,
no disk fails and the identity file is settled, they change nothing but the confirmed end. Members that become late are
noticed by the next ``Tick``, which the machine's deadline demands.
"""

from __future__ import annotations

from cometmq.broker.failover import events as e
from cometmq.broker.failover.in_sync import InSyncSet
from cometmq.broker.failover.solid import SolidMark


class ShortWay:
    """Knows whether the short way may be taken."""

    def __init__(self) -> None:
        self._in_sync: InSyncSet | None = None
        self._epoch = 0
        self._counts_flushed = True
        self.confirmed_end = 0
        """The confirmed end after the last event that took the short way."""

    def close(self) -> None:
        """Refuse events until the next :meth:`open_if_steady`."""
        self._in_sync = None

    def open_if_steady(self, in_sync: InSyncSet | None, solid: SolidMark, epoch: int, *, is_alone: bool) -> None:
        """Let events of an epoch take the short way, if they can change nothing but the confirmed end.

        :param in_sync: that of a working master; otherwise ``None``.
        """
        if in_sync is None or in_sync.joining or not solid.is_settled(is_alone=is_alone):
            return
        self._in_sync, self._epoch = in_sync, epoch
        self._counts_flushed = solid.counts_flushed(is_alone=is_alone)

    def take(self, event: e.Event, log: e.LogState, now: float) -> e.LogState | None:
        """Handle an event; return the own log, or ``None`` if the event needs the long way."""
        in_sync = self._in_sync
        if in_sync is None:
            return None
        if type(event) is e.LogMoved:
            log = event.log
        elif type(event) is e.Reported and event.epoch == self._epoch:
            if not in_sync.reported(event.member, event.end, log.end, now):
                return None
        else:
            return None
        self.confirmed_end = in_sync.confirmed_end(log.flushed if self._counts_flushed else log.end)
        return log
