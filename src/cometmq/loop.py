"""The event loop that servers, commands and synchronous clients run on, and the tasks on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop factory where it is installed, otherwise asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class TaskSet:
    """Tasks that run beside the code that starts them, each held until it ends: the event loop holds them weakly."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> None:
        """Run ``work`` in a task."""
        self.hold(asyncio.get_running_loop().create_task(work, name=name))

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that runs already."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks but the calling one."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks but the calling one and wait until they have ended."""
        self.cancel()
        await asyncio.gather(*(self._tasks - {asyncio.current_task()}), return_exceptions=True)
