"""A seeded scheduler: at each ``await`` of each task it decides if other tasks go first.

asyncio promises nothing about when a task runs that could run. Mostly it runs at once, so a program that is wrong in
another order works in tests. Inside ``interleaved(seed)`` every task that starts or wakes up may be put off by some
rounds of the event loop; the same seed gives the same decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

TURNS: Final = (0, 0, 0, 0, 1, 1, 2, 3, 5, 8)
"""Rounds of the event loop that a task is put off; one of them each time."""


class _PutOff(Coroutine[Any, Any, Any]):
    """A coroutine that is put off each time that it could go on; what is thrown into it arrives at once."""

    def __init__(self, work: Coroutine[Any, Any, Any], random: Random) -> None:
        self._work = work
        self._random = random
        self._turns = random.choice(TURNS)

    def send(self, value: Any) -> Any:
        if self._turns:
            self._turns -= 1
            return None
        self._turns = self._random.choice(TURNS)
        return self._work.send(value)

    def throw(self, *raised: Any) -> Any:
        self._turns = self._random.choice(TURNS)
        return self._work.throw(*raised)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


@contextmanager
def interleaved(seed: int) -> Iterator[Random]:
    """Put off the tasks that start from now on; yield the generator of the decisions, for the test's own ones."""
    random = Random(seed)
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_PutOff(work, random), loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        yield random
    finally:
        loop.set_task_factory(before)
