"""A client's use of an instance, which ends with the client even if the client is not closed."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from cometmq.client.instance import ClientInstance
from cometmq.loop import TaskSet

_ends = TaskSet()
"""The cleanups of forgotten clients that are in progress."""

End = Callable[[], Coroutine[Any, Any, object]]


class Use:
    """A client's use of an instance, from ``begin`` to ``end``.

    A client that was not closed and that nothing refers to is *forgotten*: a ``ResourceWarning`` then names it, and its
    use ends. The client's background work must not refer to it, or it is never forgotten.

    :param client: the client, which is referenced weakly.
    :param name: the client's name in the warning.
    :param owns: only this client uses the instance, so it owns all connections, even connections opened before
        ``begin``.
    """

    def __init__(self, client: object, instance: ClientInstance, name: str, *, owns: bool) -> None:
        self._instance = instance
        self._name = name
        self._owns = owns
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forgotten_end: End | None = None
        self._finalizer = weakref.finalize(client, self._forgotten)
        self._finalizer.atexit = False

    def begin(self, forgotten_end: End | None = None) -> None:
        """Start using the instance.

        :param forgotten_end: ends a forgotten client's own work; must not refer to the client.
        """
        self._instance.acquire()
        self._loop = asyncio.get_running_loop()
        self._forgotten_end = forgotten_end

    async def end(self) -> None:
        """Stop using the instance, and close it if no other client uses it."""
        self._finalizer.detach()
        self._loop = None
        await self._instance.release()

    def end_after(self, work: Coroutine[Any, Any, object]) -> None:
        """Stop using the instance after background work; at once if the event loop ends before."""
        self._finalizer.detach()
        self._loop = None
        self._instance.spawn(self._end_after(work), name=f"end of {self._name}")

    async def _end_after(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        finally:
            await self._instance.release()

    def _forgotten(self) -> None:
        """Clean up after a forgotten client; called by the garbage collector in any thread."""
        loop = self._loop
        if loop is None and self._owns:
            loop = next((connection.loop for connection in self._instance.remoting.connections), None)
        if loop is None or self._pid != os.getpid():  # nothing is open, or the connections belong to the parent process
            return
        with suppress(RuntimeError):  # the event loop is closed, and so are the connections
            loop.call_soon_threadsafe(self._end_soon)
        warnings.warn(
            f"{self._name} was not closed: use it inside `with` or `async with`, or call close()",
            ResourceWarning,
            stacklevel=2,
        )

    def _end_soon(self) -> None:
        _ends.start(self._end_forgotten(), f"end of {self._name}")

    async def _end_forgotten(self) -> None:
        try:
            if self._forgotten_end is not None:
                await self._forgotten_end()
        finally:
            await self._instance.release()
