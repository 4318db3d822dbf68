"""Threads for blocking work that must make progress even if the application uses up the event loop's own pool."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def are_real() -> bool:
    """Return whether threads are the operating system's threads, which gevent and eventlet replace."""
    return inspect.isbuiltin(_thread.start_new_thread)


def call_in_forked_children(function: Callable[[], object]) -> None:
    """Call a function in each child that this process forks, on systems that have ``fork``."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class Threads:
    """A thread pool that is created on first use, and again in a forked child.

    Never run an application's functions in the pool: they may wait for work that needs one of its threads.

    :param name: the beginning of the threads' names.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        call_in_forked_children(self._forget)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in one of the threads; return its result or raise its error.

        The function runs in the calling thread while Python exits, if no thread can be started, and if gevent or
        eventlet replaces threads, since their threads run only while the event loop's thread pauses.
        """
        if not are_real():
            return function(*args, **kwargs)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix=self._name)
        work = partial(contextvars.copy_context().run, function, *args, **kwargs)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RuntimeError:
            return work()
        return await running

    def _forget(self) -> None:
        self._pool = None


_WORKERS: Final = Threads("cometmq-work", min(32, (os.cpu_count() or 1) + 4))
_LOOK_UPS: Final = Threads("cometmq-names", 8)
"""The pool that resolves host names, which may take many seconds and must not delay other work."""

in_thread: Final = _WORKERS.call
look_up: Final = _LOOK_UPS.call
