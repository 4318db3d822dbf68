"""A failover set: responses wait until every counted member has their messages.

:mod:`cometmq.broker.failover` decides which log offset is confirmed. A request is answered with SUCCESS once its
position is confirmed, and with FLUSH_SLAVE_TIMEOUT after ``slaveTimeout``: its message is stored here, and nobody knows
yet whether it stays. Work of the broker itself, such as the delivery of a delayed message, never continues before its
position is confirmed. When the broker stops being the master, everything that waits is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cometmq.broker.turn.group_transfer import Replicated
from cometmq.clock import Clock
from cometmq.periodic import Alarm
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError

_SOON_S: Final = 0.001
"""Times that are less apart are the same, so that no rounding makes the alarm ring twice."""


class _Request(NamedTuple):
    position: int
    callback: Replicated
    until: float
    """Time on the monotonic clock at which it is answered at the latest."""


class ConfirmService:
    """The responses and internal callbacks that wait until their messages are confirmed.

    :param timeout_s: maximum time for which a response waits.
    """

    def __init__(self, *, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self.late_s: float | None = timeout_s
        self._timeout_s = timeout_s
        self.confirmed = 0
        """The log offset up to which everything is confirmed."""
        self._requests: deque[_Request] = deque()
        self._internal: deque[tuple[int, Callable[[StoreError | None], None]]] = deque()
        self._alarm = Alarm(self._ring, clock=clock)
        self._given_up: ResponseCode | None = None

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call ``callback`` once the log is confirmed up to ``position``, or with the reason for giving up.

        Positions are added in ascending order.
        """
        if position <= self.confirmed:
            callback(ResponseCode.SUCCESS)
        elif self._given_up is not None:
            callback(self._given_up)
        else:
            self._requests.append(_Request(position, callback, self._clock.monotonic() + self._timeout_s))
            if not self._alarm.is_set:
                self._alarm.after(self._timeout_s)

    def when_safe(self, position: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call ``callback`` once the log is confirmed up to ``position``, or with an error after :meth:`give_up`."""
        if position <= self.confirmed:
            callback(None)
        elif self._given_up is not None:
            callback(_not_confirmed())
        else:
            self._internal.append((position, callback))

    def confirm(self, offset: int) -> None:
        """Answer everything up to a log offset. A lower offset than before changes nothing."""
        if offset <= self.confirmed or self._given_up is not None:
            return
        self.confirmed = offset
        requests, internal = self._requests, self._internal
        while requests and requests[0].position <= offset:
            requests.popleft().callback(ResponseCode.SUCCESS)
        while internal and internal[0][0] <= offset:
            internal.popleft()[1](None)

    def give_up(self, code: ResponseCode) -> None:
        """Answer everything that waits with ``code``, and internal callbacks with an error; nothing waits any more."""
        self._given_up = code
        requests, internal = self._requests, self._internal
        while requests:
            requests.popleft().callback(code)
        while internal:
            internal.popleft()[1](_not_confirmed())

    def _ring(self) -> None:
        requests, now = self._requests, self._clock.monotonic()
        while requests and requests[0].until - now < _SOON_S:
            requests.popleft().callback(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        if requests:
            self._alarm.after(requests[0].until - now)


def _not_confirmed() -> StoreError:
    return StoreError(
        "this broker stopped being the master before its set had the message",
        next_step="nothing: the next master continues with the messages that the set has",
    )
