"""Iteration over messages by steps that may be cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Steps(AsyncIterator[T]):
    """An asynchronous iterator of which a step may be cancelled, as by a time-out: the next step goes on.

    An asynchronous generator ends when a step is cancelled.

    :param step: returns what comes next, or raises ``StopAsyncIteration``; takes nothing before its last ``await``.
    """

    def __init__(self, step: Callable[[], Awaitable[T]]) -> None:
        self._step = step

    def __anext__(self) -> Awaitable[T]:
        return self._step()

    async def aclose(self) -> None:
        """End the iteration, as that of a generator."""
        self._step = _ended


async def _ended() -> T:
    raise StopAsyncIteration
