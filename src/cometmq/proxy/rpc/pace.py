"""Pace: how much work of calls is done in one round of the event loop.

Work begins in a round until some time of the processor is used; what comes later waits for a later round, the first
first. Large work, such as an answer of a megabyte, has a queue of its own. One piece of it is done in a round, and
after it come so many rounds without any that others get their share.

It is the time of the processor that counts: on a busy machine a round that waited for it has done little.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from cometmq.proxy.limits import GRPC_ROUND_SECONDS

_WOKEN: Final = 16
"""Pieces of work that look in a round whether they have time."""
_LARGE_SHARE_SECONDS: Final = 0.002
"""Large work gets so much of a round: after a piece of 10 ms come 5 rounds without one."""


class Pace:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._small: deque[asyncio.Future[None]] = deque()
        self._large: deque[asyncio.Future[None]] = deque()
        self._ends: float | None = None
        """The end of the time of this round, by the thread's processor time; ``None`` before the first work of it."""
        self._is_scheduled = False
        self._rest = 0
        """Rounds that come before the next large piece."""
        self._large_began: float | None = None
        """The beginning of the round that has a large piece."""

    @property
    def is_behind(self) -> bool:
        """Work waits: no further calls should begin."""
        return bool(self._small)

    async def wait_for_time(self) -> None:
        """Wait until a piece of work may begin."""
        if self._small or not self._has_time():
            await self._wait(self._small)

    async def wait_for_large_time(self) -> None:
        """Wait until a large piece of work may begin."""
        await self._wait(self._large)

    def _has_time(self) -> bool:
        now = time.thread_time()
        if self._ends is None:
            self._ends = now + GRPC_ROUND_SECONDS
            self._schedule()
        return now < self._ends

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(future)
        self._schedule()
        await future
        while not self._has_time():
            future = loop.create_future()
            waiting.appendleft(future)
            await future

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._is_scheduled = False
        self._ends = None
        if self._large_began is not None:
            self._rest = int((time.thread_time() - self._large_began) / _LARGE_SHARE_SECONDS)
            self._large_began = None
        if self._small or self._large:
            self._schedule()  # before those that are woken now, so that they find a new round
            for _ in range(min(_WOKEN, len(self._small))):
                _wake(self._small)
            if self._rest:
                self._rest -= 1
            elif self._large:
                self._large_began = time.thread_time()
                _wake(self._large)


def _wake(waiting: deque[asyncio.Future[None]]) -> None:
    future = waiting.popleft()
    if not future.done():
        future.set_result(None)
