"""Cancellable iteration over messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Steps(AsyncIterator[T]):
    """An asynchronous iterator that continues after a step is cancelled, for example by a timeout.

    An asynchronous generator ends when a step is cancelled.

    :param step: returns the next item, or raises ``StopAsyncIteration``. It must not remove an item before its last
        ``await``, or a cancelled step would lose the item.
    """

    def __init__(self, step: Callable[[], Awaitable[T]]) -> None:
        self._step = step

    def __anext__(self) -> Awaitable[T]:
        return self._step()

    async def aclose(self) -> None:
        """End the iteration, as closing a generator does."""
        self._step = _ended


async def _ended() -> T:
    raise StopAsyncIteration
