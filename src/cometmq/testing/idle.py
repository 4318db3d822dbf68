"""Detects when an event loop is idle, so that a virtual clock can be moved.

A loop is idle when no callback is ready, no socket or pipe has an event, no thread of a pool works (a flush,
``asyncio.to_thread``, a consumer's plain listener), no TLS handshake runs, and no server that stops waits for its
sockets (:class:`~cometmq.remoting.connections.pause.SocketPause`). The loop's own timers (``asyncio.sleep``) use real
time and do not count.

asyncio and ``concurrent.futures`` have no public way to ask for this. This file reads private fields of CPython 3.11 to
3.14, for tests only: ``_ready`` and ``_selector`` of asyncio's loops (unchanged since Python 3.4), and
``concurrent.futures.thread._threads_queues`` with its ``_worker`` and a pool's ``_threads`` and ``_idle_semaphore``
(since 3.9). The only other way is to sleep until nothing has happened for a while. A test with 16 retries would then
take minutes and depend on the machine's speed; this check takes about 10 µs. uvloop has no such fields.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import thread as pools
from selectors import BaseSelector
from threading import Thread
from typing import Any, Final
from weakref import WeakKeyDictionary

from cometmq.errors import CometMQError
from cometmq.remoting.connections.pause import SocketPause
from cometmq.remoting.tls.server import HandshakeThread

SETTLE_SECONDS: Final = 10.0
"""Seconds after which a busy loop is considered never to become idle."""
_MOST_TIMES_AS_LONG: Final = 6
"""A limit lasts at most so many times as long, on a machine that is busy with other processes."""
_LOOK_SECONDS: Final = 0.0002
"""Real seconds between two checks while only threads or the system's sockets are working."""

_WORKER: Final = pools._worker.__code__
_settling: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


class NeverIdleError(CometMQError):
    """The event loop does not become idle, or its state cannot be read."""


def is_idle() -> bool:
    """Return whether the running loop is waiting only for timers.

    :raises NeverIdleError: the loop is not one of asyncio's own.
    """
    return _is_quiet(*_private_fields(asyncio.get_running_loop()))


async def settle(limit_s: float = SETTLE_SECONDS) -> None:
    """Wait until the running loop is idle.

    Concurrent calls share one wait. ``limit_s`` is in real seconds; where other processes have the processor, it lasts
    until this one has had as much processor time, at most six times as long.

    :raises NeverIdleError: the loop is busy for longer than ``limit_s``; the message names the busy tasks.
    """
    loop = asyncio.get_running_loop()
    task = _settling.get(loop)
    if task is None or task.done():
        task = loop.create_task(_wait_until_idle(loop, limit_s), name="settle")
        _settling[loop] = task
    await asyncio.shield(task)


async def _wait_until_idle(loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
    ready, selector = _private_fields(loop)
    began, worked = time.monotonic(), time.process_time()
    while True:
        await asyncio.sleep(0)
        if _is_quiet(ready, selector):
            return
        took = time.monotonic() - began
        if took > limit_s and (time.process_time() - worked > limit_s or took > _MOST_TIMES_AS_LONG * limit_s):
            raise _never_idle_error(took)
        if not ready and _is_work_elsewhere():
            await asyncio.sleep(_LOOK_SECONDS)


def _is_quiet(ready: deque[Any], selector: BaseSelector) -> bool:
    if ready or _is_work_elsewhere() or selector.select(0):
        return False
    # select() let other threads run: a thread that had just taken its work is visible now, and so are its results.
    return not ready and not _is_work_elsewhere()


def _is_work_elsewhere() -> bool:
    return HandshakeThread.left > 0 or bool(SocketPause.under_way) or bool(busy_pool_threads())


def busy_pool_threads() -> list[Thread]:
    """Return the pool threads that are working or have pending work."""
    if not pools._threads_queues:
        return []
    frames = sys._current_frames()
    busy = []
    for thread, queue in list(pools._threads_queues.items()):
        frame = frames.get(thread.ident or 0)
        if frame is None:
            continue
        works = frame.f_code is not _WORKER or not queue.empty() or _has_work(frame.f_locals)
        if works and thread.is_alive():  # the number of a thread that has ended may be used again
            busy.append(thread)
    return busy


def _has_work(worker: Mapping[str, Any]) -> bool:
    """Return whether a thread with these local variables, or another thread in its pool, has work.

    Since Python 3.13, work is given to a waiting thread directly and does not enter the queue.
    """
    pool = worker["executor_reference"]()
    return "work_item" in worker or (pool is not None and pool._idle_semaphore._value < len(pool._threads))


def _private_fields(loop: asyncio.AbstractEventLoop) -> tuple[deque[Any], BaseSelector]:
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None:
        raise NeverIdleError(
            f"{type(loop).__module__}.{type(loop).__qualname__} does not support checking whether it is idle",
            next_step="use asyncio's own event loop with a virtual clock, not uvloop's",
        )
    return ready, selector


def _never_idle_error(took_s: float) -> NeverIdleError:
    frames = sys._current_frames()
    at_work = [
        f"{thread.name} is at {frame.f_code.co_filename}:{frame.f_lineno}"
        for thread in busy_pool_threads()
        if (frame := frames.get(thread.ident or 0)) is not None
    ]
    tasks = sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name() != "settle")
    return NeverIdleError(
        f"the event loop did not become idle in {took_s:.2g} s: "
        + ("; ".join(at_work) or f"its tasks keep calling each other ({', '.join(tasks)})"),
        next_step="stop code that never waits (a loop of `asyncio.sleep(0)`, a pool thread that does not return), "
        "or use the real clock",
    )
