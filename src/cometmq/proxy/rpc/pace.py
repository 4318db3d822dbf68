"""Limits the work done for calls in each round of the event loop.

In each round, pieces of work begin until some processor time is used; the remaining pieces wait for a later round, in
order. Large pieces, such as a one-megabyte answer, have their own queue. A round does at most one large piece; the next
rounds do only small pieces, so that small pieces get their share.

Processor time counts, not wall-clock time: on a busy machine, a round that had to wait for a processor has done little.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from cometmq.proxy.limits import GRPC_ROUND_SECONDS

_WOKEN_PIECES: Final = 16
"""Maximum number of waiting pieces of work that are resumed in a round."""
_LARGE_SHARE_SECONDS: Final = 0.002
"""A large piece of work is followed by one round without large pieces for each 2 ms that it took (10 ms: 5 rounds)."""


class Pace:
    """A scheduler that decides when a piece of work can start."""

    def __init__(self) -> None:
        self._small: deque[asyncio.Future[None]] = deque()
        self._large: deque[asyncio.Future[None]] = deque()
        self._round_end: float | None = None
        """Processor time at which the current round ends, or ``None`` before the first piece of work."""
        self._is_scheduled = False
        self._rounds_to_large = 0
        """Number of rounds before the next large piece of work."""
        self._large_began: float | None = None
        """Processor time at which the last round with a large piece of work started."""

    @property
    def is_behind(self) -> bool:
        """True if work is waiting, so no further calls should start."""
        return bool(self._small)

    def has_time(self) -> bool:
        """Return whether a piece of work can start now."""
        return not self._small and self._has_time()

    async def wait_for_time(self) -> None:
        """Wait until a piece of work can start."""
        if not self.has_time():
            await self._wait(self._small)

    async def wait_for_large_time(self) -> None:
        """Wait until a large piece of work can start."""
        await self._wait(self._large)

    def _has_time(self) -> bool:
        now = time.thread_time()
        if self._round_end is None:
            self._round_end = now + GRPC_ROUND_SECONDS
            self._schedule_round()
        return now < self._round_end

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(future)
        self._schedule_round()
        await future
        while not self._has_time():
            future = loop.create_future()
            waiting.appendleft(future)
            await future

    def _schedule_round(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._is_scheduled = False
        self._round_end = None
        if self._large_began is not None:
            self._rounds_to_large = int((time.thread_time() - self._large_began) / _LARGE_SHARE_SECONDS)
            self._large_began = None
        if self._small or self._large:
            self._schedule_round()  # this runs before the woken pieces of work, so that they begin in a new round
            for _ in range(min(_WOKEN_PIECES, len(self._small))):
                _wake_first(self._small)
            if self._rounds_to_large:
                self._rounds_to_large -= 1
            elif self._large:
                self._large_began = time.thread_time()
                _wake_first(self._large)


def _wake_first(waiting: deque[asyncio.Future[None]]) -> None:
    future = waiting.popleft()
    if not future.done():
        future.set_result(None)
