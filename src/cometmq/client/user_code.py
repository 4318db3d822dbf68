"""Calls the application's functions, which can raise anything, even ``SystemExit`` and ``CancelledError``.

Their errors must not end the calling task or its event loop. Only a cancellation by the client ends the task;
a cancellation while the client is not being closed is a failure of the function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

R = TypeVar("R")


def is_end(error: BaseException) -> bool:
    """Return whether an error may mean that the calling task is ending."""
    return isinstance(error, asyncio.CancelledError | GeneratorExit)


def keep_task() -> None:
    """Undo the cancellation of the current task by a function that it called."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread has no current task
        return
    while task is not None and task.cancelling():
        task.uncancel()


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a function is an ``async def``, or an object with an ``async def __call__``."""
    method = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


async def in_thread(threads: Executor, function: Callable[..., R], *arguments: object) -> R:
    """Call a function in one of ``threads``; raise whatever it raises.

    The error is not set on the future: a future cannot hold ``StopIteration``, and ``GeneratorExit`` from a future
    would close the waiting coroutine.
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
