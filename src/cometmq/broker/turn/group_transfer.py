"""SYNC_MASTER: answers wait until a slave has the log up to their messages (``GroupTransferService``).

One slave is enough. The furthest report counts, also that of a slave that has left since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock, TimerHandle
from cometmq.remoting.codes import ResponseCode

Replicated = Callable[[ResponseCode], None]
"""Called with SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""


class GroupTransferService:
    """The furthest report of the slaves, and the answers that wait for it.

    :param timeout_s: the longest wait.
    :param fall_behind_max: bytes; nothing waits for slaves that are further behind.
    """

    def __init__(self, *, clock: Clock, timeout_s: float, fall_behind_max: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._fall_behind_max = fall_behind_max
        self._waiting: deque[_Waiter] = deque()
        self.slaves = 0
        """Slaves that are connected and have reported."""
        self.max_offset: int = 0
        """The furthest report of any slave (``push2SlaveMaxOffset``)."""
        self._connected_offset: int = 0
        """The furthest report of the connected slaves."""

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call back once a slave has the log up to ``position``, or with the reason not to wait any longer.

        Positions come in ascending order; one that comes late, after its flush, waits for those before it too.
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
        """A slave has sent its first report."""
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
        """A slave has left. Without any slave no answer waits: none comes back before the time-out.

        :param furthest: the furthest report of the other slaves.
        """
        self.slaves -= 1
        self._connected_offset = max(furthest, 0)
        if not self.slaves:
            waiting, self._waiting = self._waiting, deque()
            for waiter in waiting:
                waiter.end(ResponseCode.SLAVE_NOT_AVAILABLE)


class _Waiter:
    """An answer that waits for a position, called once: by a report, the time-out or the last slave's leave."""

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
