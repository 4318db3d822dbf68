"""The base of the synchronous clients: an event loop in a background thread, and calls that wait for it."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from cometmq.client.errors import ClientStateError, ForkedError
from cometmq.client.own_process import refuse_copies
from cometmq.loop import fastest_loop
from cometmq.threads import are_real, call_in_forked_children

A = TypeVar("A", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


STOP_TIMEOUT_S: Final = 5.0
"""Maximum time for the loop to end when Python exits, unless an async listener blocks the loop."""


INTERRUPT_S: Final = 1.0
"""Maximum time for an interrupted call to end, unless an async listener blocks the loop."""


class _Background:
    """The event loop shared by all synchronous clients of a process, in a daemon thread.

    It stops when Python exits, since a daemon thread that runs longer may crash. Exit handlers of the application that
    were registered before the first client may use clients even after that: the loop then runs in the calling thread
    while this thread waits.
    """

    def __init__(self) -> None:
        self._forget()
        call_in_forked_children(self._forget)

    def _forget(self) -> None:
        """Reset the state in a forked child, which has no such thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop."""
        with self._lock:
            if self._loop is None:
                self._loop = fastest_loop()()
                thread = threading.Thread(target=_run_on, args=(self._loop,), name="cometmq-client", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # Python exits, and no new thread can start
                    self._is_over = True
                else:
                    atexit.register(self._stop, self._loop, thread, os.getpid())
            return self._loop

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
        if pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_TIMEOUT_S)
            self._is_over = True

    @property
    def is_over(self) -> bool:
        """Stop the thread when Python exits; after that, the loop runs only while a caller waits."""
        return self._is_over

    def run(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, R],
        undelivered: Callable[[R], object] | None = None,
    ) -> R:
        """Run a coroutine on the loop and wait for it.

        :param undelivered: called on the loop with the result if the wait was interrupted, for example by a signal
            handler that raises in this thread, after the coroutine had ended or could no longer be cancelled.
        :raises ClientStateError: Python exits while a listener blocks the loop.
        """
        if not self._is_over:
            call = _Call(loop, work)
            try:
                return call.wait()
            except BaseException as error:
                call.interrupted(error, undelivered)
                raise
        with self._lock:
            if loop.is_running():
                work.close()
                raise ClientStateError(
                    "Python exits while a listener blocks the event loop of the synchronous clients",
                    next_step="close clients before the program ends, and do not block in async listeners",
                )
            return loop.run_until_complete(work)


class _Call(Generic[T]):
    """A coroutine on the loop that another thread waits for.

    It waits on a plain lock: a signal handler that raises inside a future's condition could leave it half released.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._running = threading.Lock()
        self._running.acquire()
        self._error: BaseException | None = None
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        try:
            loop.call_soon_threadsafe(self._begin, work)
        except RuntimeError:
            work.close()
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._error = CancelledError() if task.cancelled() else task.exception()
        self._running.release()

    def wait(self) -> T:
        """Wait for the coroutine to end; return its result or raise its error."""
        self._running.acquire()
        if self._error is not None:
            raise self._error
        assert self._task is not None
        return self._task.result()

    def interrupted(self, error: BaseException, undelivered: Callable[[T], object] | None) -> None:
        """Cancel the coroutine, unless the coroutine raised ``error``; pass a result that it still returns to
        ``undelivered``.
        """
        if error is self._error:
            return
        is_over = threading.Event()
        self._loop.call_soon_threadsafe(self._cancel, undelivered, is_over)
        if undelivered is not None:
            with suppress(BaseException):
                is_over.wait(INTERRUPT_S)

    def _cancel(self, undelivered: Callable[[T], object] | None, is_over: threading.Event) -> None:
        def ended(task: asyncio.Task[T]) -> None:
            if undelivered is not None and not task.cancelled() and task.exception() is None:
                undelivered(task.result())
            is_over.set()

        assert self._task is not None
        self._task.add_done_callback(ended)
        self._loop.call_soon(self._task.cancel)  # after its first step, when its coroutine has begun


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, even if the application's log handlers raise errors."""
    while True:
        try:
            loop.run_forever()
        except BaseException:  # otherwise every synchronous client of the process would wait forever
            traceback.print_exc()
        else:
            return


_BACKGROUND: Final = _Background()


class _Raised(NamedTuple):
    error: BaseException


async def _kept(work: Coroutine[Any, Any, R]) -> R | _Raised:
    """Return the result of ``work``, or wrap an error that would end the event loop if the task raised it."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        return _Raised(error)


class Answer(Generic[T]):
    """The outcome of work on the loop that another thread waits for, without a task or a future."""

    __slots__ = ("_arrived", "_outcome")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._outcome: T | BaseException | None = None

    def put(self, outcome: T | BaseException) -> None:
        """Pass on the outcome, once; an error is raised to the waiting thread."""
        self._outcome = outcome
        self._arrived.release()

    def wait(self) -> T:
        """Wait for the outcome; return it or raise it."""
        self._arrived.acquire()
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return cast(T, outcome)


def _check_real_threads() -> None:
    """Check that threads are real, so that one can run the event loop while another waits.

    :raises ClientStateError: gevent or eventlet has replaced threads by code that runs in turns in one thread.
    """
    if not are_real():
        raise ClientStateError(
            "threads are replaced in this process, for example by gevent or eventlet: a synchronous client "
            "would wait forever for the event loop in its thread",
            next_step="patch everything except threads (gevent.monkey.patch_all(thread=False)), or use the "
            "asynchronous "
            "client",
        )


class SyncClient(Generic[A]):
    """A synchronous client: an asynchronous client and the event loop on which it runs."""

    __reduce_ex__ = refuse_copies

    _inner: A

    def _bind(self, kind: Callable[P, A], *args: P.args, **options: P.kwargs) -> None:
        """Create the asynchronous client on its loop."""
        _check_real_threads()
        self._loop = _BACKGROUND.loop()
        self._pid = os.getpid()
        self._inner = self._call(lambda: kind(*args, **options))

    def __enter__(self) -> Self:
        self._run(cast(Any, self._inner).__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        self._run(cast(Any, self._inner).__aexit__(*raised))

    @property
    def _is_exiting(self) -> bool:
        """Record that Python is exiting, so that nothing runs in the background."""
        return _BACKGROUND.is_over

    def _check_other_thread(self) -> None:
        _check_real_threads()
        if self._pid != os.getpid():
            raise ForkedError(
                "any server",
                "this client was created in the parent process",
                next_step="create a new client after the fork",
            )
        if threading.current_thread().name == "cometmq-client":
            raise ClientStateError(
                "a synchronous client was used on the client's own event loop, which would wait for itself",
                next_step="use the asynchronous client in async listeners",
            )

    def _run(self, work: Coroutine[Any, Any, R], undelivered: Callable[[R], object] | None = None) -> R:
        try:
            self._check_other_thread()
        except (ClientStateError, ForkedError):
            work.close()
            raise

        def not_raised(outcome: R | _Raised) -> None:
            if undelivered is not None and not isinstance(outcome, _Raised):
                undelivered(outcome)

        outcome = _BACKGROUND.run(self._loop, _kept(work), None if undelivered is None else not_raised)
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def _call(self, function: Callable[[], R]) -> R:
        async def run() -> R:
            return function()

        return self._run(run())


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient[A], P], R]:
    """Return a method that calls the asynchronous method and waits for it."""

    @functools.wraps(method)
    def call(self: SyncClient[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._run(getattr(self._inner, method.__name__)(*args, **kwargs))
        return result

    return call


def taking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient[A], P], R]:
    """Return a blocking method for an asynchronous method that returns messages.

    If a signal handler raises during the call, fetched messages are put back, and the next call returns them.
    """

    @functools.wraps(method)
    def call(self: SyncClient[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        inner: Any = self._inner
        result: R = self._run(getattr(inner, method.__name__)(*args, **kwargs), inner.give_back)
        return result

    return call


class SyncSteps(Iterator[R]):
    """An iterator that continues after a step is interrupted, for example by a signal handler.

    A generator ends when a step is interrupted.

    :param step: returns the next item, or raises ``StopIteration``.
    """

    def __init__(self, step: Callable[[], R]) -> None:
        self._step = step

    def __next__(self) -> R:
        return self._step()

    def close(self) -> None:
        """End the iteration, as closing a generator does."""
        self._step = _ended


def _ended() -> Any:
    raise StopIteration
