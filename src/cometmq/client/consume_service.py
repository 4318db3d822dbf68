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
from concurrent.futures import thread as futures
from functools import partial
from typing import Final, cast

from cometmq.client.listener import Listener, Verdict, is_coroutine_listener, judged, raised
from cometmq.client.process_queue import ConsumeRequest
from cometmq.client.user_code import is_end
from cometmq.clock import Clock, TimerHandle
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)

JOIN_S: Final = 0.002
"""How long requests wait in line before more workers join."""

YIELD_REQUESTS: Final = 64
"""Requests after which a coroutine listener lets the event loop do other things."""

Settled = Callable[[ConsumeRequest, Verdict], None]


class ConsumeService:
    """Runs one listener.

    :param settled: called on the event loop with each request and what the listener said.
    :param ending: whether the client or its event loop ends, so that a cancelled call is no failure of the listener.
    """

    def __init__(
        self, listener: Listener, concurrency: int, clock: Clock, settled: Settled, ending: Callable[[], bool]
    ) -> None:
        self._listener = listener
        self._is_async = is_coroutine_listener(listener)
        self._concurrency = concurrency
        self._clock = clock
        self._settled = settled
        self._ending = ending
        self._closed = False
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
        """Let nothing more begin; calls that run are cancelled where they can be, and not waited for.

        The call that closes its own consumer goes on.
        """
        self._closed = True
        self._line.clear()
        if self._join_timer is not None:
            self._join_timer.cancel()
        for task in self._tasks - {asyncio.current_task()}:
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
        if self._threads is not None:
            try:
                self._threads.submit(self._work_in_thread)
            except RuntimeError as error:  # Python ends, and begins no thread any more
                log.warning("%d requests are not consumed: %s", len(self._line), error)
                return
        else:
            task = self._loop.create_task(self._work_in_task())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._workers += 1

    def _leave(self) -> None:
        self._workers -= 1
        if self._line and not self._workers and not self._ending():
            self._join()

    # --- in a task ---

    async def _work_in_task(self) -> None:
        listener = cast("Callable[[list[MessageExt]], Awaitable[Verdict]]", self._listener)
        line = self._line
        served = 0
        try:
            while line:
                request = line.popleft()
                if request.process_queue.dropped:
                    continue
                request.process_queue.running.add(request)
                try:
                    verdict = await listener(request.messages[:])
                    if verdict is not None:
                        verdict = judged(request.messages, verdict)
                except BaseException as error:
                    if is_end(error) and (self._closed or self._ending()):
                        request.process_queue.skip(request)
                        raise
                    verdict = raised(request.messages, error)
                self._settled(request, verdict)
                served += 1
                if served % YIELD_REQUESTS == 0:
                    await asyncio.sleep(0)
        finally:
            self._leave()

    # --- in a thread ---

    def _work_in_thread(self) -> None:
        try:
            self._consume_in_thread()
        finally:
            self._call_loop(self._leave)

    def _consume_in_thread(self) -> None:
        """Consume until the line is empty, or Python exits: it waits for this thread first of all."""
        listener = cast("Callable[[list[MessageExt]], Verdict]", self._listener)
        line = self._line
        answers = self._answers
        while not futures._shutdown:
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
                verdict = listener(request.messages[:])
                if verdict is not None:
                    verdict = judged(request.messages, verdict)
            except BaseException as error:
                verdict = raised(request.messages, error)
            answers.append((request, verdict))
            self._wake()

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
