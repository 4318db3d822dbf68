"""Denials that are answered later.

Clients send again at once when a broker is busy. An answer that comes when there is room again lets the next attempt
pass, and keeps clients from asking thousands of times a second.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_DELAYED_DENIALS
from cometmq.remoting.processors import Request, Response, encode_response
from cometmq.remoting.server_connection import ServerConnection

_Waiting = tuple[float, int, ServerConnection, Request[Any], Response]


class DelayedDenials:
    """Denials by the time of their answers, with one timer; above a limit they are answered at once."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._timer: TimerHandle | None = None

    def answer(self, connection: ServerConnection, request: Request[Any], response: Response, delay_s: float) -> None:
        """Answer a request after a time."""
        if delay_s <= 0 or len(self._waiting) >= MAX_DELAYED_DENIALS:
            _write(connection, request, response)
            return
        due = self._clock.monotonic() + delay_s
        heapq.heappush(self._waiting, (due, next(self._numbers), connection, request, response))
        if self._waiting[0][0] == due:
            self._wait()

    def stop(self) -> None:
        """Answer all at once."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for _, _, connection, request, response in waiting:
            _write(connection, request, response)

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(self._waiting[0][0] - self._clock.monotonic(), 0.0)
        self._timer = self._clock.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, connection, request, response = heapq.heappop(self._waiting)
            _write(connection, request, response)
        if self._waiting:
            self._wait()


def _write(connection: ServerConnection, request: Request[Any], response: Response) -> None:
    connection.count(request, response.code)
    connection.write(*encode_response(request.serialize_type, request.opaque, response))
