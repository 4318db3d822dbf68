"""The event loop for servers, commands and synchronous clients, and tasks on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_ENDED: Final = object()


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop factory if uvloop is installed, otherwise asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def call_now(work: Callable[[], None]) -> None:
    """Call a function immediately; used instead of a function that would call it later."""
    work()


def resolver(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that sets the future's result, unless its waiter was cancelled meanwhile."""

    def resolve(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return resolve


def over_rounds(steps: Iterator[None]) -> None:
    """Run the first step of a piece of work immediately, and each further step in a round of its own."""
    if next(steps, _ENDED) is not _ENDED:
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, over_rounds, steps)  # requests that have arrived are handled in between


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps of a piece of work immediately, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


async def in_rounds(steps: Generator[None, None, T]) -> T:
    """Run one step of a piece of work in each round of the event loop, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


async def close_server(server: asyncio.Server) -> None:
    """Stop listening, and return once each accepted connection has been made known to its protocol.

    asyncio forgets a connection that it has accepted if its server is closed in the next round of the loop: that one
    stays open, and nobody knows it.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)  # makes the transports
    server.close()
    await asyncio.sleep(0)  # calls the protocols


class TaskSet:
    """Background tasks. Each is referenced here until it ends, since the event loop has only weak references."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> None:
        """Run ``work`` in a task."""
        self.hold(asyncio.get_running_loop().create_task(work, name=name))

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Add a task that is already running."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks except the calling one."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks except the calling one, and wait until they have ended."""
        self.cancel()
        await asyncio.gather(*(self._tasks - {asyncio.current_task()}), return_exceptions=True)

    async def join(self) -> None:
        """Wait until all tasks have ended; ignore their results."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that must not end half way: if the caller is cancelled, the work ends first."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class SharedTask(Generic[T]):
    """A task that any number of callers can await; it continues if a caller stops waiting.

    It is like ``asyncio.shield``, but for many callers: if one stops waiting, the cost does not depend on the number of
    callers.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self._waiters: dict[asyncio.Future[T], None] = {}
        self.task.add_done_callback(self._ended)

    async def wait(self) -> T:
        """Return the task's result, or raise its error."""
        if self.task.done():
            return self.task.result()
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            return await waiter
        finally:
            self._waiters.pop(waiter, None)

    def _ended(self, task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        for waiter in self._waiters:
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
                waiter.exception()  # read the result now, since the caller may stop waiting in this round
            else:
                waiter.set_result(task.result())
