"""Work for thousands of connections at a time, a few milliseconds of it in each round of the event loop.

When a network fails, thousands of connections fall silent or close at the same time. To end one with unread responses
takes 0.3 ms, and each may have members of many groups, held requests and counters.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from cometmq.clock import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")

SHARE_SECONDS: Final = 0.002
"""Maximum time in each round."""


class Gradual(Generic[T]):
    """Calls a function with each item in their order; other clients are answered in between."""

    def __init__(self, work: Callable[[T], None], *, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._waiting: deque[T] = deque()
        self._has_round = False

    def add(self, item: T) -> None:
        """Call the function with an item soon."""
        self._waiting.append(item)
        if not self._has_round:
            self._has_round = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def finish(self) -> None:
        """Call the function with all remaining items now."""
        while self._waiting:
            self._work(self._waiting.popleft())

    def _next_round(self) -> None:
        until = self._clock.monotonic() + SHARE_SECONDS
        while self._waiting and self._clock.monotonic() < until:
            self._work(self._waiting.popleft())
        self._has_round = bool(self._waiting)
        if self._has_round:
            loop = asyncio.get_running_loop()
            # bytes that have arrived in the meantime are handled in between
            loop.call_soon(loop.call_soon, self._next_round)


class Closed(Protocol):
    """A closed connection, with the functions to call."""

    on_close: list[Callable[[Any], None]]


def call_on_close(connection: Closed) -> None:
    """Call the functions in ``on_close`` of a connection."""
    for function in connection.on_close:
        try:
            function(connection)
        except Exception:
            _log.exception("cannot clean up completely after a closed connection")
