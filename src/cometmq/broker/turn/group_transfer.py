"""SYNC_MASTER: responses wait until the slaves in sync have replicated their messages (``GroupTransferService``).

:mod:`cometmq.broker.turn.slaves_in_sync` decides which slaves are waited for. A response ends with SUCCESS once its
position is confirmed, with SLAVE_NOT_AVAILABLE if too few slaves are in sync, and with FLUSH_SLAVE_TIMEOUT after
``slaveTimeout``. A slave for which a response has waited for two thirds of this time is no longer waited for, if enough
others are on time. Otherwise it has the whole time, and then it is not waited for either.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from cometmq.broker.turn.slaves_in_sync import SlavesInSync, State
from cometmq.clock import Clock
from cometmq.periodic import Alarm
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError

_log = logging.getLogger(__name__)

Replicated = Callable[[ResponseCode], None]
"""Callback with SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""

_LATE: Final = 2 / 3
"""The part of the timeout after which a slave is late: the rest is left for the response to be on time."""
_SOON_S: Final = 0.001
"""Times that are less apart are the same, so that no rounding makes the alarm ring twice."""
_PAUSED_S: Final = 0.1
"""An alarm that rings so late says that this process was paused, and that reports may wait to be read."""
_READ_S: Final = 0.01
"""Time to read reports after a pause, before slaves are judged."""


class _Waiter(NamedTuple):
    """A pending response, with the time at which its waiting began, in seconds."""

    position: int
    callback: Replicated
    since: float


class GroupTransferService:
    """The responses that wait for slaves.

    :param timeout_s: maximum time to wait for slaves.
    :param in_sync: the slaves; only this service changes it.
    """

    def __init__(self, *, clock: Clock, timeout_s: float, in_sync: SlavesInSync) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self.late_s: float | None = None  # internal callbacks wait no longer than requests
        self._late_s = timeout_s * _LATE
        self.in_sync: Final = in_sync
        self._young: deque[_Waiter] = deque()
        """Responses that have not waited long, sorted by position and time."""
        self._old: deque[_Waiter] = deque()
        """Earlier responses, which wait for as many slaves as required."""
        self._alarm = Alarm(self._ring, clock=clock)
        self._due = 0.0
        """The time at which the alarm rings."""
        self._is_enough = True

    def when_safe(self, position: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call ``callback`` like :meth:`when_replicated`, but without an error after the timeout."""
        self.when_replicated(position, lambda _: callback(None))

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call ``callback`` once the log is confirmed up to ``position``, or with the reason for giving up.

        Positions are added in ascending order. A lower position that is added later, after its flush, is answered after
        those added before.
        """
        members = self.in_sync
        members.stored(position)
        self._settle()
        if position <= members.confirmed:
            callback(ResponseCode.SUCCESS)
        elif members.waited_for < members.minimum:
            self._note(is_enough=False)
            callback(ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            self._note(is_enough=True)
            self._young.append(_Waiter(position, callback, self._clock.monotonic()))
            if not self._alarm.is_set:
                self._ring_at(self._clock.monotonic() + self._late_s)

    # --- events of slaves -----------------------------------------------------------------------
    def marked(self, end: int) -> None:
        """Remember the end of the log, about once per second."""
        self.in_sync.marked(end)
        self._settle()

    def reported(self, slave: Hashable, offset: int) -> None:
        """Record that a slave has the log up to ``offset``."""
        self.in_sync.reported(slave, offset)
        self._settle()

    def doubt(self, slave: Hashable, sent: int) -> None:
        """Count a slave again once it reports more than the ``sent`` bytes, since it may have just reconnected over
        another connection.
        """
        self.in_sync.doubted(slave, sent)

    def remove_slave(self, slave: Hashable) -> None:
        """Remove a slave; if fewer slaves than required are connected, responses stop waiting."""
        self.in_sync.removed(slave)
        self._settle()
        if self.in_sync.connected < self.in_sync.minimum:
            waiting = [*self._old, *self._young]
            self._old.clear()
            self._young.clear()
            for waiter in waiting:
                waiter.callback(ResponseCode.SLAVE_NOT_AVAILABLE)

    # --- responses ------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Answer what is confirmed now, and log which slaves are newly in sync or no longer in sync."""
        confirmed = self.in_sync.confirmed
        for waiting in (self._old, self._young):
            while waiting and waiting[0].position <= confirmed:
                waiting.popleft().callback(ResponseCode.SUCCESS)
        for change in self.in_sync.take_changes():
            if change.after is State.IN_SYNC:
                _log.info("slave %s is in sync", change.slave)
            elif change.after is State.CATCHING_UP:
                _log.warning(
                    "slave %s is not in sync any more: %s. Check its disk and the network, and promote it only once it "
                    "is in sync again",
                    change.slave,
                    change.event.value,
                )

    def _note(self, *, is_enough: bool) -> None:
        """Log when sends begin and end to be answered with SLAVE_NOT_AVAILABLE."""
        if is_enough == self._is_enough:
            return
        self._is_enough = is_enough
        if is_enough:
            _log.info("enough slaves are in sync: sends wait for them")
        else:
            _log.warning(
                "sends return SLAVE_NOT_AVAILABLE: %d of at least %d slaves are in sync. Start the missing slaves, or "
                "see why they are behind (cometmq cluster slaves)",
                self.in_sync.waited_for,
                self.in_sync.minimum,
            )

    def _ring_at(self, when: float) -> None:
        self._due = when
        self._alarm.after(max(when - self._clock.monotonic(), 0.0))

    def _ring(self) -> None:
        if self._clock.monotonic() - self._due > _PAUSED_S:
            self._alarm.after(_READ_S)
            self._due = float("inf")  # only once
        else:
            self._judge()

    def _judge(self) -> None:
        """End the responses that have waited too long, and stop waiting for slaves that are late."""
        now = self._clock.monotonic()
        late_at = None
        while self._young and now - self._young[0].since > self._late_s - _SOON_S:
            self._old.append(self._young.popleft())
            late_at = self._old[-1].position
        if late_at is not None:
            self.in_sync.waited(late_at, if_enough=True)
            self._settle()
        while self._old and now - self._old[0].since > self._timeout_s - _SOON_S:
            waiter = self._old.popleft()
            self.in_sync.waited(waiter.position)
            self._settle()
            waiter.callback(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        ends = [self._old[0].since + self._timeout_s] if self._old else []
        if self._young:
            ends.append(self._young[0].since + self._late_s)
        if ends:
            self._ring_at(min(ends))
