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
from itertools import islice
from typing import Final

from cometmq.proxy.limits import GRPC_ROUND_SECONDS

_WOKEN_PIECES: Final = 16
"""Maximum number of waiting pieces of work that are resumed in a round."""
_LARGE_SHARE_SECONDS: Final = 0.002
"""A large piece of work is followed by one round without large pieces for each 2 ms that it took (10 ms: 5 rounds)."""


class _Line:
    """Pieces of work in the order in which they begin. A woken piece that finds no time keeps its place."""

    def __init__(self) -> None:
        self._places: deque[_Place] = deque()

    def __bool__(self) -> bool:
        while self._places and self._places[0].is_left:
            self._places.popleft()
        return bool(self._places)

    def join(self) -> _Place:
        """Return a place at the end of the line."""
        place = _Place()
        self._places.append(place)
        return place

    def is_first(self, place: _Place) -> bool:
        """Return whether no other piece waits before this one."""
        return bool(self) and self._places[0] is place

    def wake(self, count: int) -> None:
        """Wake the first pieces."""
        for place in islice(self._places, count):
            if not place.future.done():
                place.future.set_result(None)


class _Place:
    """The place of a piece of work in a line."""

    __slots__ = ("future", "is_left")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_left = False
        """True once the piece has begun or was cancelled."""


class Pace:
    """A scheduler that decides when a piece of work can start.

    :param loop: the loop in whose rounds the work is done.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._small = _Line()
        self._large = _Line()
        self._round_end: float | None = None
        """Processor time at which the current round ends, or ``None`` before a piece of work reads it."""
        self._has_begun = False
        """True from the first piece of work in a round until the end of the round."""
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
        """Return whether a piece of work can start now.

        The first piece of a round always can. Its time does not count, because most rounds have only this piece, and
        reading the processor time takes a system call.
        """
        if self._small:
            return False
        if not self._has_begun:
            self._has_begun = True
            self._schedule_round()
            return True
        return self._has_time()

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

    async def _wait(self, line: _Line) -> None:
        place = line.join()
        self._schedule_round()
        try:
            await place.future
            while not (line.is_first(place) and self._has_time()):
                place.future = asyncio.get_running_loop().create_future()
                await place.future
        finally:
            place.is_left = True

    def _schedule_round(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._is_scheduled = self._has_begun = False
        self._round_end = None
        if self._large_began is not None:
            self._rounds_to_large = int((time.thread_time() - self._large_began) / _LARGE_SHARE_SECONDS)
            self._large_began = None
        if self._small or self._large:
            self._schedule_round()  # this runs before the woken pieces of work, so that they begin in a new round
            self._small.wake(_WOKEN_PIECES)
            if self._rounds_to_large:
                self._rounds_to_large -= 1
            elif self._large:
                self._large_began = time.thread_time()
                self._large.wake(1)
