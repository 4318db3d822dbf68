"""Calls of the application's own functions, which may raise anything: ``SystemExit`` and ``CancelledError`` as well.

What escapes from them must end neither the task that calls them nor its event loop. Only a cancellation of our
own ends that task; it is told from one of the function's own by whether the client is being closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

R = TypeVar("R")


def is_end(error: BaseException) -> bool:
    """Whether it may be the end of the task that makes the call instead of the function's own failure."""
    return isinstance(error, asyncio.CancelledError | GeneratorExit)


def keep_task() -> None:
    """Let the task go on that the function it called has cancelled."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread there is none
        return
    while task is not None and task.cancelling():
        task.uncancel()


async def in_thread(threads: Executor | None, function: Callable[..., R], *arguments: object) -> R:
    """Call a function in a thread, of the event loop's own by default; what it raises is raised here.

    Futures do not carry ``StopIteration``, and ``GeneratorExit`` from a future closes the coroutine that waits.
    """
    outcome, error = await asyncio.get_running_loop().run_in_executor(threads, _call, function, arguments)
    if error is not None:
        raise error
    return outcome  # type: ignore[return-value]


def _call(function: Callable[..., R], arguments: tuple[object, ...]) -> tuple[R | None, BaseException | None]:
    try:
        return function(*arguments), None
    except BaseException as error:
        return None, error
