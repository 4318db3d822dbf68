"""Calls a listener concurrently, with as many workers as needed (``ConsumeMessageConcurrentlyService``).

Theory of operation. Requests wait in one queue. A worker (a thread for a plain function, a task for a coroutine
function) handles one request after the other until the queue is empty, so a quick listener needs neither a thread
switch nor a task for each message. When requests have waited for :data:`JOIN_S`, more workers join: first one, then
twice as many each time, up to the limit.

A request that is being handled is in ``process_queue.running`` until it is finished or skipped. A worker in a thread
adds it there *before* it checks ``dropped``, and a hand-over sets ``dropped`` *before* it checks ``running``; so either
the worker skips the request, or the hand-over waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as futures
from functools import partial
from typing import Any, Final, cast

from cometmq.client.consumer.listener import Listener, Verdict, checked_verdict, raised
from cometmq.client.consumer.process_queue import ConsumeRequest
from cometmq.client.instance import ClientInstance
from cometmq.client.user_code import is_async, is_end
from cometmq.loop import TaskSet
from cometmq.message.message import MessageExt
from cometmq.periodic import Alarm

log = logging.getLogger(__name__)

JOIN_S: Final = 0.002
"""Number of seconds for which requests wait before more workers are started."""

YIELD_REQUESTS: Final = 64
"""Number of requests after which a coroutine listener yields to the event loop."""

OnVerdict = Callable[[ConsumeRequest, Verdict], None]


class Workers:
    """Runs listener calls: in threads if the listener is a plain function, otherwise in tasks."""

    def __init__(self, listener: Listener, concurrency: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._tasks = TaskSet()
        self.threads = (
            None if is_async(listener) else ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-consume")
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task."""
        self._tasks.hold(self.loop.create_task(work))

    def call_loop(self, callback: Callable[[], None]) -> None:
        """Call a function on the event loop, from any thread."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.debug("the event loop ended before the listener call returned")

    def close(self) -> None:
        """Cancel the tasks and start no more threads; calls already running in threads may finish.

        The call that closes its own consumer is not cancelled.
        """
        self.closed = True
        self._tasks.cancel()
        if self.threads is not None:
            self.threads.shutdown(wait=False)


class ConsumeService:
    """Calls a listener concurrently.

    :param on_verdict: called on the event loop with each request and the listener's verdict.
    """

    def __init__(self, listener: Listener, concurrency: int, instance: ClientInstance, on_verdict: OnVerdict) -> None:
        self._listener = listener
        self._concurrency = concurrency
        self._on_verdict = on_verdict
        self._ending = instance.is_ending
        self._line: deque[ConsumeRequest] = deque()
        self._answers: deque[tuple[ConsumeRequest, Verdict]] = deque()
        self._draining = False
        self._busy = 0
        self._next_join = Alarm(self._join_more, clock=instance.clock)
        self._workers = Workers(listener, concurrency)

    def submit(self, requests: list[ConsumeRequest]) -> None:
        """Append requests to the workers' queue."""
        self._line.extend(requests)
        if not self._busy:
            self._join()
        if self._busy < self._concurrency and not self._next_join.is_set:
            self._next_join.after(JOIN_S)

    def close(self) -> None:
        """Start no more calls; see :meth:`Workers.close`."""
        self._line.clear()
        self._next_join.close()
        self._workers.close()

    def _join_more(self) -> None:
        if not self._line or self._busy >= self._concurrency:
            return
        for _ in range(min(max(1, self._busy), self._concurrency - self._busy, len(self._line))):
            self._join()
        if self._busy < self._concurrency:
            self._next_join.after(JOIN_S)

    def _join(self) -> None:
        if self._workers.threads is not None:
            try:
                self._workers.threads.submit(self._work_in_thread)
            except RuntimeError as error:  # Python exits, and no new thread can start
                log.warning("cannot consume %d requests: %s", len(self._line), error)
                return
        else:
            self._workers.spawn(self._work_in_task())
        self._busy += 1

    def _leave(self) -> None:
        self._busy -= 1
        if self._line and not self._busy and not self._ending():
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
                        verdict = checked_verdict(request.messages, verdict)
                except BaseException as error:
                    if is_end(error) and (self._workers.closed or self._ending()):
                        request.process_queue.end_request(request)
                        raise
                    verdict = raised(request.messages, error)
                self._on_verdict(request, verdict)
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
            self._workers.call_loop(self._leave)

    def _consume_in_thread(self) -> None:
        """Consume requests in a thread until none are pending or Python exits."""
        listener = cast("Callable[[list[MessageExt]], Verdict]", self._listener)
        line = self._line
        answers = self._answers
        while not futures._shutdown:
            try:
                request = line.popleft()
            except IndexError:
                break
            queue = request.process_queue
            queue.running.add(request)
            if queue.dropped:
                self._workers.call_loop(partial(queue.end_request, request))
                continue
            try:
                verdict = listener(request.messages[:])
                if verdict is not None:
                    verdict = checked_verdict(request.messages, verdict)
            except BaseException as error:
                verdict = raised(request.messages, error)
            answers.append((request, verdict))
            if not self._draining:
                self._draining = True
                self._workers.call_loop(self._drain)

    def _drain(self) -> None:
        self._draining = False
        answers = self._answers
        while answers:
            self._on_verdict(*answers.popleft())
