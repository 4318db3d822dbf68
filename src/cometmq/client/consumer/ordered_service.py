"""Calls a listener for each queue's messages in order, one call at a time (``ConsumeMessageOrderlyService``).

Theory of operation. Every queue with messages has a lane, and a lane is in one of these states:

* *ready*: it waits in ``_ready`` for a worker (a thread for a plain function, a task for a coroutine function).
* *worked on*: one worker handles its requests in order until the lane is empty, a request fails, or
  :data:`MAX_CONSUME_CONTINUOUSLY_S` have passed and other lanes wait.
* *resting*: a request failed and remains first in its lane. After the pause the lane is ready again. No later request
  begins before this request is consumed or given up.
* gone: it is empty, or its queue was left. If the lock of a queue is lost, the table reads the queue again.

Before each call the worker checks that the queue is not dropped and that its lock is held. As in
:mod:`cometmq.client.consumer.consume_service` a thread adds the request to ``running`` first.

Without auto commit, a consumed request waits in ``process_queue.uncommitted`` for COMMIT, which finishes it and all
requests before it, or for ROLLBACK, after which all of these requests are consumed again. Until then, the queue's
offset does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import thread as futures
from enum import Enum
from functools import partial
from typing import Final, cast

from cometmq.client.consumer.config import PushConfig
from cometmq.client.consumer.consume_service import YIELD_REQUESTS, Workers
from cometmq.client.consumer.failures import OrderedFailures
from cometmq.client.consumer.listener import (
    ConsumeResult,
    Listener,
    Rollback,
    Suspend,
    Verdict,
    checked_verdict,
    failed_messages,
    raised,
)
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.consumer.process_queue_table import ProcessQueueTable
from cometmq.client.instance import ClientInstance
from cometmq.client.user_code import is_end
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)

MAX_CONSUME_CONTINUOUSLY_S: Final = 60.0
"""Seconds after which a worker leaves its lane if other lanes are waiting (``MAX_TIME_CONSUME_CONTINUOUSLY``)."""


class _End(Enum):
    """Reasons why a worker leaves a lane."""

    PAUSE = "empty, or long enough"
    FAILED = "a request failed"
    STOPPED = "this member must not consume the queue now"


class _Lane:
    __slots__ = ("line", "process_queue")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.line: deque[ConsumeRequest] = deque()


class OrderedConsumeService:
    """Calls a listener for many queues, one call at a time for each queue.

    :param table: the queues, and their locks.
    :param failures: decides on failed messages.
    """

    def __init__(
        self,
        listener: Listener,
        config: PushConfig,
        instance: ClientInstance,
        table: ProcessQueueTable,
        failures: OrderedFailures,
    ) -> None:
        self._listener = listener
        self._suspend_s = config.suspend_current_queue_s
        self._auto_commit = config.auto_commit
        self._clock = instance.clock
        self._ending = instance.is_ending
        self._table = table
        self._failures = failures
        self._lanes: dict[ProcessQueue, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._idle_workers = config.consume_concurrency
        self._consumed: deque[tuple[ConsumeRequest, Verdict]] = deque()
        self._finishing = False
        self._workers = Workers(listener, config.consume_concurrency)

    def submit(self, requests: list[ConsumeRequest]) -> None:
        """Append requests from one queue to its lane."""
        process_queue = requests[0].process_queue
        lane = self._lanes.get(process_queue)
        if lane is None:
            lane = self._lanes[process_queue] = _Lane(process_queue)
            lane.line.extend(requests)
            self._queue_up(lane)
        else:
            lane.line.extend(requests)

    def close(self) -> None:
        """Start no more calls; see :meth:`Workers.close <cometmq.client.consumer.consume_service.Workers.close>`."""
        self._ready.clear()
        self._lanes.clear()
        self._workers.close()

    # --- lanes ---

    def _queue_up(self, lane: _Lane) -> None:
        self._ready.append(lane)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._ready and self._idle_workers and not self._ending():
            self._idle_workers -= 1
            lane = self._ready.popleft()
            if self._workers.threads is not None:
                try:
                    self._workers.threads.submit(self._work_in_thread, lane)
                except RuntimeError as error:  # Python exits, and no new thread can start
                    log.warning("cannot consume %s: %s", lane.process_queue.queue, error)
            else:
                self._workers.spawn(self._work_in_task(lane))

    def _left(self, lane: _Lane, end: _End, verdict: Verdict) -> None:
        """Decide a lane's next state after a worker has left it."""
        self._idle_workers += 1
        process_queue = lane.process_queue
        if process_queue not in self._lanes:  # the service was closed in the meantime
            for request in list(process_queue.running):
                process_queue.end_request(request)
            return
        if end is _End.FAILED:
            self._workers.spawn(self._rest(lane, verdict))
        elif end is _End.PAUSE and lane.line:
            self._ready.append(lane)
        else:
            del self._lanes[process_queue]
            if end is _End.STOPPED and not process_queue.dropped:
                self._table.lock_lost(process_queue.queue)
            elif process_queue.uncommitted and process_queue.is_full:
                text = "reading %s is paused, because the listener has not committed the last %d messages"
                log.warning(text, process_queue.queue, process_queue.cached_count)
        self._hand_out()

    async def _rest(self, lane: _Lane, verdict: Verdict) -> None:
        """Handle the first request of a queue after it has failed: forward its messages, or retry it after a pause."""
        request, process_queue = lane.line[0], lane.process_queue
        if process_queue.dropped:
            process_queue.end_request(request)
            del self._lanes[process_queue]
            return
        if verdict is ConsumeResult.ROLLBACK or isinstance(verdict, Rollback):
            process_queue.end_request(request)
            lane.line.extendleft(reversed(process_queue.uncommitted))
            process_queue.uncommitted.clear()
            remaining = request.messages
        else:
            remaining = await self._failed(request, verdict)
        if remaining:
            given = verdict.seconds if isinstance(verdict, Suspend | Rollback) else None
            await self._clock.sleep(self._suspend_s if given is None else given)
        else:
            lane.line.popleft()
            process_queue.finish(request)
        if lane.line:
            self._queue_up(lane)
        else:
            del self._lanes[process_queue]

    async def _failed(self, request: ConsumeRequest, verdict: Verdict) -> list[MessageExt]:
        """Reduce a request to the messages that must be consumed again, and return them."""
        process_queue = request.process_queue
        failed = list(failed_messages(request.messages, verdict))
        if not self._auto_commit and len(failed) < len(request.messages):
            process_queue.uncommitted.append(process_queue.split(request, len(failed)))
        try:
            remaining = await self._failures.judge(failed, verdict)
        except Exception:
            log.exception("consuming %d messages again, because they could not be forwarded", len(failed))
            remaining = failed
        if remaining:
            process_queue.shrink(request, remaining)
        return remaining

    def _succeeded(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Finish a consumed request, or keep it until COMMIT."""
        process_queue = request.process_queue
        if self._auto_commit or verdict is ConsumeResult.COMMIT:
            for earlier in process_queue.uncommitted:
                process_queue.finish(earlier)
            process_queue.uncommitted.clear()
            process_queue.finish(request)
        else:
            process_queue.end_request(request)
            process_queue.uncommitted.append(request)

    # --- in a task ---

    async def _work_in_task(self, lane: _Lane) -> None:
        end = _End.PAUSE
        verdict: Verdict = None
        try:
            end, verdict = await self._consume_in_task(lane)
        finally:
            self._left(lane, end, verdict)

    async def _consume_in_task(self, lane: _Lane) -> tuple[_End, Verdict]:
        """Consume a lane's requests in a task; return the reason for stopping and the last verdict."""
        listener = cast("Callable[[list[MessageExt]], Awaitable[Verdict]]", self._listener)
        line, process_queue = lane.line, lane.process_queue
        until = self._clock.monotonic() + MAX_CONSUME_CONTINUOUSLY_S
        served = 0
        while line and self._clock.monotonic() < until:
            if process_queue.dropped or not self._table.is_exclusive(process_queue.queue):
                return _End.STOPPED, None
            request = line[0]
            process_queue.running.add(request)
            try:
                verdict = await listener(request.messages[:])
                if verdict is not None:
                    verdict = checked_verdict(request.messages, verdict, manual_commit=not self._auto_commit)
            except BaseException as error:
                if is_end(error) and (self._workers.closed or self._ending()):
                    process_queue.end_request(request)
                    raise
                verdict = raised(request.messages, error)
            if failed_messages(request.messages, verdict):
                return _End.FAILED, verdict
            line.popleft()
            self._succeeded(request, verdict)
            served += 1
            if served % YIELD_REQUESTS == 0:
                await asyncio.sleep(0)
        return _End.PAUSE, None

    # --- in a thread ---

    def _work_in_thread(self, lane: _Lane) -> None:
        end = _End.PAUSE
        verdict: Verdict = None
        try:
            end, verdict = self._consume_in_thread(lane)
        finally:
            self._workers.call_loop(partial(self._left, lane, end, verdict))

    def _consume_in_thread(self, lane: _Lane) -> tuple[_End, Verdict]:
        listener = cast("Callable[[list[MessageExt]], Verdict]", self._listener)
        line, process_queue = lane.line, lane.process_queue
        until = self._clock.monotonic() + MAX_CONSUME_CONTINUOUSLY_S
        # Python waits for this thread when it exits
        while line and self._clock.monotonic() < until and not futures._shutdown:
            request = line[0]
            process_queue.running.add(request)
            if process_queue.dropped or not self._table.is_exclusive(process_queue.queue):
                self._workers.call_loop(partial(process_queue.end_request, request))
                return _End.STOPPED, None
            try:
                verdict = listener(request.messages[:])
                if verdict is not None:
                    verdict = checked_verdict(request.messages, verdict, manual_commit=not self._auto_commit)
            except BaseException as error:
                verdict = raised(request.messages, error)
            if failed_messages(request.messages, verdict):
                return _End.FAILED, verdict
            line.popleft()
            self._consumed.append((request, verdict))
            if not self._finishing:
                self._finishing = True
                self._workers.call_loop(self._finish)
        return _End.PAUSE, None

    def _finish(self) -> None:
        self._finishing = False
        consumed = self._consumed
        while consumed:
            self._succeeded(*consumed.popleft())
