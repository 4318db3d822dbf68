"""Calls the listener, in as many workers as it needs and is allowed (``ConsumeMessageConcurrentlyService``).

Requests wait in one line. A worker (a thread for a plain function, a task for a coroutine function)
takes one after the other until the line is empty, so that quick listeners cost neither a thread hop
nor a task per message. A second worker joins when the line does not get shorter by itself within a
few milliseconds, then twice as many, and so on up to the limit: slow listeners get all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, cast

from cometmq.client.listener import ConsumeResult, Listener, Verdict, is_coroutine_listener
from cometmq.client.process_queue import ConsumeRequest
from cometmq.clock import Clock, TimerHandle

log = logging.getLogger(__name__)

JOIN_S: Final = 0.002
"""How long requests wait in line before more workers join."""

YIELD_REQUESTS: Final = 64
"""Requests after which a coroutine listener lets the event loop do other things."""

Settled = Callable[[ConsumeRequest, Verdict], None]


class ConsumeService:
    """Runs one listener.

    :param settled: called on the event loop with each request and what the listener said.
    """

    def __init__(self, listener: Listener, concurrency: int, clock: Clock, settled: Settled) -> None:
        self._listener = listener
        self._is_async = is_coroutine_listener(listener)
        self._concurrency = concurrency
        self._clock = clock
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._line: deque[ConsumeRequest] = deque()
        self._answers: deque[tuple[ConsumeRequest, Verdict]] = deque()
        self._draining = False
        self._workers = 0
        self._join_timer: TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = (
            None if self._is_async else ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-consume")
        )

    def submit(self, requests: list[ConsumeRequest]) -> None:
        """Put requests into the line."""
        self._line.extend(requests)
        if not self._workers:
            self._join()
        if self._workers < self._concurrency and self._join_timer is None:
            self._join_timer = self._clock.call_later(JOIN_S, self._join_more)

    def close(self) -> None:
        """Let nothing more begin; calls that run are not waited for."""
        self._line.clear()
        if self._join_timer is not None:
            self._join_timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _join_more(self) -> None:
        self._join_timer = None
        if not self._line or self._workers >= self._concurrency:
            return
        for _ in range(min(max(1, self._workers), self._concurrency - self._workers, len(self._line))):
            self._join()
        if self._workers < self._concurrency:
            self._join_timer = self._clock.call_later(JOIN_S, self._join_more)

    def _join(self) -> None:
        self._workers += 1
        if self._threads is not None:
            self._threads.submit(self._work_in_thread)
        else:
            task = self._loop.create_task(self._work_in_task())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _leave(self) -> None:
        self._workers -= 1
        if self._line and not self._workers:
            self._join()

    # --- in a task ---

    async def _work_in_task(self) -> None:
        listener = cast("Callable[[list[object]], Awaitable[Verdict]]", self._listener)
        line = self._line
        served = 0
        try:
            while line:
                request = line.popleft()
                if request.process_queue.dropped:
                    continue
                request.process_queue.running.add(request)
                try:
                    verdict: Verdict = await listener(cast("list[object]", request.messages))
                except asyncio.CancelledError:
                    request.process_queue.skip(request)
                    raise
                except Exception:
                    log.exception("the listener failed on %d messages", len(request.messages))
                    verdict = ConsumeResult.RECONSUME_LATER
                self._settled(request, verdict)
                served += 1
                if served % YIELD_REQUESTS == 0:
                    await asyncio.sleep(0)
        finally:
            self._leave()

    # --- in a thread ---

    def _work_in_thread(self) -> None:
        listener = cast("Callable[[list[object]], Verdict]", self._listener)
        line = self._line
        answers = self._answers
        while True:
            try:
                request = line.popleft()
            except IndexError:
                break
            queue = request.process_queue
            queue.running.add(request)  # before looking at dropped: whoever drops the queue looks here afterwards
            if queue.dropped:
                self._call_loop(partial(queue.skip, request))
                continue
            try:
                verdict = listener(cast("list[object]", request.messages))
            except Exception:
                log.exception("the listener failed on %d messages", len(request.messages))
                verdict = ConsumeResult.RECONSUME_LATER
            answers.append((request, verdict))
            self._wake()
        self._call_loop(self._leave)

    def _wake(self) -> None:
        if not self._draining:
            self._draining = True
            self._call_loop(self._drain)

    def _call_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.debug("the event loop ended before the listener did")

    def _drain(self) -> None:
        self._draining = False
        answers = self._answers
        while answers:
            self._settled(*answers.popleft())
