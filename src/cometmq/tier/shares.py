"""Threads that work for many queues, of which each queue gets only a share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cometmq.tier.limits import READING_THREADS, THREADS_OF_QUEUE

Work = Callable[[], None]
_Queue = tuple[str, int]


class SharedThreads:
    """Does the work for a queue in the order in which it was given, and for a few questions at the same time.

    So a file that is read slowly delays the consumers of its queue, but no others.
    """

    def __init__(self) -> None:
        self._threads: Final = ThreadPoolExecutor(READING_THREADS, "read")
        self._lock = threading.Lock()
        self._running: dict[_Queue, int] = {}
        self._waiting: dict[_Queue, deque[Work]] = {}

    def submit(self, queue: _Queue, work: Work) -> None:
        """Do work for a queue as soon as the queue's share allows."""
        with self._lock:
            running = self._running.get(queue, 0)
            if running == THREADS_OF_QUEUE:
                self._waiting.setdefault(queue, deque()).append(work)
                return
            self._running[queue] = running + 1
        self._threads.submit(self._do, queue, work)

    def _do(self, queue: _Queue, work: Work) -> None:
        try:
            work()
        finally:
            following = self._next(queue)
            if following is not None:
                self._threads.submit(self._do, queue, following)  # behind the work for other queues

    def _next(self, queue: _Queue) -> Work | None:
        with self._lock:
            waiting = self._waiting.get(queue)
            if waiting is None:
                self._running[queue] -= 1
                if not self._running[queue]:
                    del self._running[queue]
                return None
            following = waiting.popleft()
            if not waiting:
                del self._waiting[queue]
            return following
