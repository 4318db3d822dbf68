"""Tell when an event loop is idle, so that a virtual clock may be moved.

A loop is idle when no callback is ready, no socket or pipe has an event, and neither a thread of a pool works
(a flush, ``asyncio.to_thread``, a consumer's plain listener) nor that of TLS handshakes. Timers of the loop itself
(``asyncio.sleep``) go by real time and do not count.

asyncio and ``concurrent.futures`` have no public way to ask for this. This file reads three private fields of
CPython 3.11 to 3.13, for tests only: ``_ready`` and ``_selector`` of asyncio's loops (unchanged since Python 3.4) and
``concurrent.futures.thread._threads_queues`` with its ``_worker`` (since 3.9). The only other way is to sleep until
nothing has happened for a while, which makes a test with 16 retries last minutes and depend on the machine's speed;
this look takes about 10 µs. uvloop has no such fields.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from concurrent.futures import thread as pools
from selectors import BaseSelector
from threading import Thread
from typing import Any, Final
from weakref import WeakKeyDictionary

from cometmq.errors import CometMQError
from cometmq.remoting.tls.server import HandshakeThread

SETTLE_SECONDS: Final = 10.0
"""Real seconds after which a busy loop counts as never idle: many times a flush or a listener."""
_THREAD_LOOK_SECONDS: Final = 0.0002
"""Real pause between two looks while only threads work: they need the interpreter."""

_WORKER: Final = pools._worker.__code__
_settling: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


class NeverIdleError(CometMQError):
    """The event loop does not become idle, or does not tell whether it is."""


def is_idle() -> bool:
    """Return True when only timers would make the running loop do anything.

    :raises NeverIdleError: the loop is not one of asyncio's own.
    """
    return _is_quiet(*_inside(asyncio.get_running_loop()))


async def settle(limit_s: float = SETTLE_SECONDS) -> None:
    """Wait until the running loop is idle.

    Calls at the same time wait together. ``limit_s`` is in real seconds.

    :raises NeverIdleError: the loop is busy for longer than ``limit_s``; the message names the busy tasks.
    """
    loop = asyncio.get_running_loop()
    task = _settling.get(loop)
    if task is None or task.done():
        task = loop.create_task(_settle(loop, limit_s), name="settle")
        _settling[loop] = task
    await asyncio.shield(task)


async def _settle(loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
    ready, selector = _inside(loop)
    give_up_at = time.monotonic() + limit_s
    while True:
        await asyncio.sleep(0)
        if _is_quiet(ready, selector):
            return
        if time.monotonic() > give_up_at:
            raise _never_idle(limit_s)
        if not ready and _threads_work():
            await asyncio.sleep(_THREAD_LOOK_SECONDS)


def _is_quiet(ready: deque[Any], selector: BaseSelector) -> bool:
    if ready or _threads_work() or selector.select(0):
        return False
    # select() let other threads run: a thread that had just taken its work is visible now, and so are its results.
    return not ready and not _threads_work()


def _threads_work() -> bool:
    return HandshakeThread.left > 0 or bool(busy_threads())


def busy_threads() -> list[Thread]:
    """Return the threads of pools that work or have work waiting."""
    if not pools._threads_queues:
        return []
    frames = sys._current_frames()
    busy = []
    for thread, queue in list(pools._threads_queues.items()):
        frame = frames.get(thread.ident or 0)
        if frame is None:
            continue
        works = frame.f_code is not _WORKER or not queue.empty() or "work_item" in frame.f_locals
        if works and thread.is_alive():  # another thread may have got the number of one that has ended
            busy.append(thread)
    return busy


def _inside(loop: asyncio.AbstractEventLoop) -> tuple[deque[Any], BaseSelector]:
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None:
        raise NeverIdleError(
            f"{type(loop).__module__}.{type(loop).__qualname__} does not tell whether it has anything left to do",
            next_step="move a virtual clock on asyncio's own event loop, not on uvloop's",
        )
    return ready, selector


def _never_idle(limit_s: float) -> NeverIdleError:
    frames = sys._current_frames()
    at_work = [
        f"{thread.name} is at {frame.f_code.co_filename}:{frame.f_lineno}"
        for thread in busy_threads()
        if (frame := frames.get(thread.ident or 0)) is not None
    ]
    tasks = sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name() != "settle")
    return NeverIdleError(
        f"the event loop did not come to rest in {limit_s:g} s: "
        + ("; ".join(at_work) or f"its tasks keep calling each other ({', '.join(tasks)})"),
        next_step="end what never waits (a loop of `asyncio.sleep(0)`, a thread of a pool that does not return), "
        "or test with the real clock",
    )
