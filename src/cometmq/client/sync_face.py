"""What every client without ``await`` stands on: one event loop in a background thread, and calls that wait for it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from cometmq.client.errors import ClientStateError, ForkedError
from cometmq.loop import fastest_loop

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


class _Background:
    """The event loop that all synchronous clients of a process share, in a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = -1

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; after a fork the child gets one of its own."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = fastest_loop()()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="cometmq-client", daemon=True).start()
                atexit.register(self._stop, self._loop, self._pid)
            return self._loop

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
        if pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)


_BACKGROUND: Final = _Background()


class _Raised(NamedTuple):
    error: BaseException


async def _kept(work: Coroutine[Any, Any, R]) -> R | _Raised:
    """The result, or what was raised that a task hands to its event loop, which would end by it."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        return _Raised(error)


class Face(Generic[A]):
    """A client and the loop that it lives on."""

    _inner: A

    def _bind(self, make: Callable[[], A]) -> None:
        self._loop = _BACKGROUND.loop()
        self._pid = os.getpid()

        async def build() -> A:
            return make()

        self._inner = self._run(build())

    def _demand_other_thread(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                "any server", "this client belongs to the parent process", next_step="make a new client after the fork"
            )
        if threading.current_thread().name == "cometmq-client":
            raise ClientStateError(
                "a synchronous client was used on the client's own event loop, which would wait for itself",
                next_step="use the asynchronous client in async listeners",
            )

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            self._demand_other_thread()
        except (ClientStateError, ForkedError):
            work.close()
            raise
        outcome = asyncio.run_coroutine_threadsafe(_kept(work), self._loop).result()
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def _call(self, function: Callable[[], R]) -> R:
        async def run() -> R:
            return function()

        return self._run(run())


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Face[A], P], R]:
    """A method that waits for the asynchronous one."""

    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self._inner, *args, **kwargs))

    call.__name__ = method.__name__
    call.__doc__ = method.__doc__
    return call
