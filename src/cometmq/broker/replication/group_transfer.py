"""SYNC_MASTER: who waits until a slave has the log up to their messages (``GroupTransferService``).

One slave is enough. What counts is the furthest that any slave has reported, also one that has left since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock, TimerHandle
from cometmq.remoting.codes import ResponseCode

Replicated = Callable[[ResponseCode], None]
"""Told SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""


class GroupTransferService:
    """The furthest report of the slaves, and who waits for it to move.

    :param fall_behind_max: bytes by which slaves may be behind for it to make sense to wait.
    """

    def __init__(self, *, clock: Clock, timeout_s: float, fall_behind_max: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._fall_behind_max = fall_behind_max
        self._waiting: deque[_Waiter] = deque()
        self.slaves = 0
        """Slaves that are connected and have reported."""
        self.max_offset: int = 0
        """The furthest that any slave has reported (``push2SlaveMaxOffset``)."""
        self._connected_offset: int = 0
        """The furthest that one of those has reported that are connected."""

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call back once a slave has the log up to ``position``, or with why that is not waited for any longer.

        Positions come in their order, but for those that waited for their flush before: they wait for what came
        before them, too.
        """
        if position <= self.max_offset:
            callback(ResponseCode.SUCCESS)
        elif not self.slaves or position - self._connected_offset >= self._fall_behind_max:
            callback(ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            while self._waiting and self._waiting[0].is_over:
                self._waiting.popleft()
            self._waiting.append(_Waiter(position, callback, self._clock, self._timeout_s))

    def joined(self) -> None:
        """One more slave is there."""
        self.slaves += 1

    def reported(self, offset: int) -> None:
        """A slave has the log up to ``offset``."""
        self._connected_offset = max(self._connected_offset, offset)
        if offset > self.max_offset:
            self.max_offset = offset
            waiting = self._waiting
            while waiting and (waiting[0].is_over or waiting[0].position <= offset):
                waiting.popleft().end(ResponseCode.SUCCESS)

    def left(self, furthest: int) -> None:
        """A slave is gone; with the last one nobody is waited for, since none comes back in less than the time-out.

        :param furthest: how far the furthest of the others is.
        """
        self.slaves -= 1
        self._connected_offset = max(furthest, 0)
        if not self.slaves:
            waiting, self._waiting = self._waiting, deque()
            for waiter in waiting:
                waiter.end(ResponseCode.SLAVE_NOT_AVAILABLE)


class _Waiter:
    """Somebody who waits for a position: told once, by whichever comes first."""

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
