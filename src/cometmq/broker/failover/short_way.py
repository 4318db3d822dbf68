"""The short way of a steady member's events that only move the end of a log, or the confirmed end.

A master gets two of them for each turn of messages: its log has grown, and a replica has reported. A follower's log has
grown, and it has heard what is confirmed. While nobody joins, no disk fails and the identity file is settled, they
change nothing else. Members that become late are noticed by the next ``Tick``, which the machine's deadline demands.
"""

from __future__ import annotations

from cometmq.broker.failover import events as e
from cometmq.broker.failover.in_sync import InSyncSet
from cometmq.broker.failover.master_link import MasterLink
from cometmq.broker.failover.solid import SolidMark


class ShortWay:
    """Knows whether the short way may be taken."""

    def __init__(self) -> None:
        self._in_sync: InSyncSet | None = None
        self._link: MasterLink | None = None
        self._epoch = 0
        self._counts_flushed = True
        self.confirmed_end = 0
        """The confirmed end that the last event has shown, or 0."""

    def close(self) -> None:
        """Refuse events until the next :meth:`open_if_steady`."""
        self._in_sync = self._link = None

    def open_if_steady(self, in_sync: InSyncSet | None, link: MasterLink, solid: SolidMark, epoch: int) -> None:
        """Let events of an epoch take the short way, if they can change nothing but the confirmed end.

        :param in_sync: that of a working master; otherwise ``None``.
        """
        is_alone = in_sync is not None and in_sync.is_alone
        if not solid.is_settled(is_alone=is_alone):
            return
        if in_sync is None:
            self._link = link if link.is_copying else None
        elif not in_sync.joining:
            self._in_sync = in_sync
            self._counts_flushed = solid.counts_flushed(is_alone=is_alone)
        self._epoch = epoch

    def take(self, event: e.Event, log: e.LogState, now: float) -> e.LogState | None:
        """Handle an event; return the own log, or ``None`` if the event needs the long way."""
        in_sync, link = self._in_sync, self._link
        if in_sync is None:
            return None if link is None else self._follow(link, event, log, now)
        if type(event) is e.LogMoved:
            log = event.log
        elif type(event) is e.Reported and event.epoch == self._epoch:
            if not in_sync.reported(event.member, event.end, log.end, now):
                return None
        else:
            return None
        self.confirmed_end = in_sync.confirmed_end(log.flushed if self._counts_flushed else log.end)
        return log

    def _follow(self, link: MasterLink, event: e.Event, log: e.LogState, now: float) -> e.LogState | None:
        if type(event) is e.LogMoved:
            self.confirmed_end = 0
            return event.log
        if type(event) is not e.Heard or event.epoch != self._epoch:
            return None
        link.heard_at = now
        self.confirmed_end = event.confirmed
        return log
