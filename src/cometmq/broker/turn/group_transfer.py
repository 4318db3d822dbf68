"""SYNC_MASTER: responses wait until enough slaves have replicated their messages (``GroupTransferService``).

``inSyncReplicas`` is the number of brokers, including this one, that must have a message before its send is answered: 2
means one slave, 3 means two slaves. A slave counts once, even if it reconnects while its old connection is still open.
A position that enough slaves have reported remains confirmed, since their logs only grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from cometmq.clock import Clock, TimerHandle
from cometmq.remoting.codes import ResponseCode

Replicated = Callable[[ResponseCode], None]
"""Callback with SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""


@dataclass(frozen=True)
class InSync:
    """The number of brokers that must have a message, including this one (``CommitLog.calcNeedAckNums``)."""

    replicas: int = 2
    adapts: bool = False
    """True if, while fewer brokers are in sync, these are enough, as long as they are at least ``least``."""
    least: int = 1


class GroupTransferService:
    """The reports from slaves, and the responses that are waiting for them.

    :param timeout_s: maximum time to wait for slaves.
    :param fall_behind_max: maximum number of bytes that an in-sync slave may be behind.
    """

    def __init__(self, *, clock: Clock, timeout_s: float, fall_behind_max: int, in_sync: InSync | None = None) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._fall_behind_max = fall_behind_max
        self._in_sync = in_sync or InSync()
        self._reports: dict[Hashable, int] = {}
        """The last report from each connected slave that has sent one."""
        self._doubtful: set[Hashable] = set()
        """Connections whose slave may have reconnected over another connection; they count again after their next
        report.
        """
        self._offsets: dict[int, int] = {}
        """The highest position that a given number of slaves have confirmed (``push2SlaveMaxOffset``)."""
        self._waiting: dict[int, deque[_Waiter]] = {}
        """Pending responses by the number of slaves that they require, sorted by position."""

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call ``callback`` once enough slaves have replicated the log up to ``position``, or with the reason for
        giving up.

        Positions are added in ascending order. A lower position that is added later, after its flush, is answered after
        those added before.
        """
        in_sync = sum(position - offset < self._fall_behind_max for offset in self._reports.values())
        needed = self._in_sync.replicas - 1
        if self._in_sync.adapts:
            needed = max(min(needed, in_sync), self._in_sync.least - 1)
        if needed <= 0 or position <= self._offsets.get(needed, 0):
            callback(ResponseCode.SUCCESS)
        elif in_sync < needed:
            callback(ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            waiting = self._waiting.setdefault(needed, deque())
            while waiting and waiting[0].is_over:
                waiting.popleft()
            waiting.append(_Waiter(position, callback, self._clock, self._timeout_s))

    def ignore_until_report(self, slave: Hashable) -> None:
        """Ignore a slave until its next report, since it may have just reconnected over another connection."""
        self._doubtful.add(slave)

    def reported(self, slave: Hashable, offset: int) -> None:
        """Record that a slave has the log up to ``offset``."""
        self._reports[slave] = offset
        self._doubtful.discard(slave)
        counted = sorted((at for one, at in self._reports.items() if one not in self._doubtful), reverse=True)
        for slaves, furthest in enumerate(counted, 1):
            if furthest <= self._offsets.get(slaves, 0):
                continue
            self._offsets[slaves] = furthest
            waiting = self._waiting.get(slaves)
            while waiting and (waiting[0].is_over or waiting[0].position <= furthest):
                waiting.popleft().end(ResponseCode.SUCCESS)

    def remove_slave(self, slave: Hashable) -> None:
        """Remove a slave; responses that require more slaves than are connected stop waiting."""
        self._reports.pop(slave, None)
        self._doubtful.discard(slave)
        for needed in [number for number in self._waiting if number > len(self._reports)]:
            for waiter in self._waiting.pop(needed):
                waiter.end(ResponseCode.SLAVE_NOT_AVAILABLE)


class _Waiter:
    """A pending response. It is sent after a slave's report, after the timeout or when a slave leaves."""

    __slots__ = ("_callback", "_timer", "position")

    def __init__(self, position: int, callback: Replicated, clock: Clock, timeout_s: float) -> None:
        self.position: Final = position
        self._callback: Replicated | None = callback
        self._timer: TimerHandle = clock.call_later(timeout_s, self.end, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    @property
    def is_over(self) -> bool:
        return self._callback is None

    def end(self, code: ResponseCode) -> None:
        callback, self._callback = self._callback, None
        self._timer.cancel()
        if callback is not None:
            callback(code)
