"""Calls the listener queue by queue, each in its order, one call at a time (``ConsumeMessageOrderlyService``).

Every queue has a lane. A lane with messages waits for a worker (a thread for a plain function, a task
for a coroutine function), which takes request after request until the lane is empty, one fails, or
:data:`MAX_CONSUME_CONTINUOUSLY_S` are over and other lanes shall have their turn. A request that failed
stays first in its lane, which rests; nothing behind it begins before it is done or given up.

Without auto commit a consumed request waits for the listener's COMMIT, which ends it and all that were consumed
before it, or for ROLLBACK, after which all of them are consumed again. Meanwhile the queue's offset stands still.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as futures
from enum import Enum
from functools import partial
from typing import Final, cast

from cometmq.client.consume_service import YIELD_REQUESTS
from cometmq.client.listener import (
    ConsumeResult,
    Listener,
    Rollback,
    Suspend,
    Verdict,
    failed_part,
    is_coroutine_listener,
    judged,
    raised,
)
from cometmq.client.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.user_code import is_end
from cometmq.clock import Clock
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)

MAX_CONSUME_CONTINUOUSLY_S: Final = 60.0
"""Seconds after which a lane lets others go first (``MAX_TIME_CONSUME_CONTINUOUSLY``)."""


class _End(Enum):
    """Why a worker left a lane."""

    PAUSE = "empty, or long enough"
    FAILED = "a request failed"
    STOPPED = "the queue is not ours to consume now"


class _Lane:
    __slots__ = ("line", "process_queue")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.line: deque[ConsumeRequest] = deque()


class OrderedConsumeService:
    """Runs one listener over many queues.

    :param suspend_s: how long a queue rests after a failure, unless the listener says so.
    :param may_consume: whether a queue's lock is held; asked before each call, from any thread.
    :param stopped: called when a queue has messages and may not be consumed.
    :param give_up: takes failed messages and what the listener said; returns those to be consumed again.
    :param auto_commit: whether a message is done as soon as the listener has consumed it.
    :param ending: whether the client or its event loop ends, so that a cancelled call is no failure of the listener.
    """

    def __init__(
        self,
        listener: Listener,
        concurrency: int,
        suspend_s: float,
        clock: Clock,
        may_consume: Callable[[ProcessQueue], bool],
        stopped: Callable[[ProcessQueue], None],
        give_up: Callable[[list[MessageExt], Verdict], Awaitable[list[MessageExt]]],
        ending: Callable[[], bool],
        *,
        auto_commit: bool = True,
    ) -> None:
        self._listener = listener
        self._suspend_s = suspend_s
        self._clock = clock
        self._may_consume = may_consume
        self._stopped = stopped
        self._give_up = give_up
        self._ending = ending
        self._auto_commit = auto_commit
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[ProcessQueue, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._idle_workers = concurrency
        self._consumed: deque[tuple[ConsumeRequest, Verdict]] = deque()
        self._finishing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = (
            None
            if is_coroutine_listener(listener)
            else ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-consume")
        )

    def submit(self, requests: list[ConsumeRequest]) -> None:
        """Put requests of one queue behind those that its lane has already."""
        process_queue = requests[0].process_queue
        lane = self._lanes.get(process_queue)
        if lane is None:
            lane = self._lanes[process_queue] = _Lane(process_queue)
            lane.line.extend(requests)
            self._queue_up(lane)
        else:
            lane.line.extend(requests)

    def close(self) -> None:
        """Let nothing more begin; calls that run are cancelled where they can be, and not waited for.

        The call that closes its own consumer goes on.
        """
        self._closed = True
        self._ready.clear()
        self._lanes.clear()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    # --- lanes ---

    def _queue_up(self, lane: _Lane) -> None:
        self._ready.append(lane)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._ready and self._idle_workers and not self._ending():
            self._idle_workers -= 1
            lane = self._ready.popleft()
            if self._threads is not None:
                try:
                    self._threads.submit(self._work_in_thread, lane)
                except RuntimeError as error:  # Python ends, and begins no thread any more
                    log.warning("%s is not consumed: %s", lane.process_queue.queue, error)
            else:
                self._spawn(self._work_in_task(lane))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _left(self, lane: _Lane, end: _End, verdict: Verdict) -> None:
        """A worker has left a lane."""
        self._idle_workers += 1
        process_queue = lane.process_queue
        if process_queue not in self._lanes:  # closed meanwhile
            for request in list(process_queue.running):
                process_queue.skip(request)
            return
        if end is _End.FAILED:
            self._spawn(self._rest(lane, verdict))
        elif end is _End.PAUSE and lane.line:
            self._ready.append(lane)
        else:
            del self._lanes[process_queue]
            if end is _End.STOPPED and not process_queue.dropped:
                self._stopped(process_queue)
            elif process_queue.uncommitted and process_queue.is_full:
                text = "%s is not read on: the listener has not committed the last %d messages"
                log.warning(text, process_queue.queue, process_queue.cached_count)
        self._hand_out()

    async def _rest(self, lane: _Lane, verdict: Verdict) -> None:
        """The first request failed: give it up, or let the lane rest and try it again."""
        request, process_queue = lane.line[0], lane.process_queue
        if process_queue.dropped:
            process_queue.skip(request)
            del self._lanes[process_queue]
            return
        if verdict is ConsumeResult.ROLLBACK or isinstance(verdict, Rollback):
            process_queue.skip(request)
            lane.line.extendleft(reversed(process_queue.uncommitted))
            process_queue.uncommitted.clear()
            kept = request.messages
        else:
            kept = await self._failed(request, verdict)
        if kept:
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
        """The messages of a request that are to be consumed again, and that it consists of from now on."""
        process_queue = request.process_queue
        failed = list(failed_part(request.messages, verdict))
        if not self._auto_commit and len(failed) < len(request.messages):
            process_queue.uncommitted.append(process_queue.split(request, len(failed)))
        try:
            kept = await self._give_up(failed, verdict)
        except Exception:
            log.exception("%d messages are consumed again, since they could not be given up", len(failed))
            kept = failed
        if kept:
            process_queue.shrink(request, kept)
        return kept

    def _succeeded(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """A request was consumed: it is done, or waits for a commit."""
        process_queue = request.process_queue
        if self._auto_commit or verdict is ConsumeResult.COMMIT:
            for earlier in process_queue.uncommitted:
                process_queue.finish(earlier)
            process_queue.uncommitted.clear()
            process_queue.finish(request)
        else:
            process_queue.skip(request)
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
        """Consume a lane; why that ended, and what the listener said last."""
        listener = cast("Callable[[list[MessageExt]], Awaitable[Verdict]]", self._listener)
        line, process_queue = lane.line, lane.process_queue
        until = self._clock.monotonic() + MAX_CONSUME_CONTINUOUSLY_S
        served = 0
        while line and self._clock.monotonic() < until:
            if process_queue.dropped or not self._may_consume(process_queue):
                return _End.STOPPED, None
            request = line[0]
            process_queue.running.add(request)
            try:
                verdict = await listener(request.messages[:])
                if verdict is not None:
                    verdict = judged(request.messages, verdict, manual_commit=not self._auto_commit)
            except BaseException as error:
                if is_end(error) and (self._closed or self._ending()):
                    process_queue.skip(request)
                    raise
                verdict = raised(request.messages, error)
            if failed_part(request.messages, verdict):
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
            self._call_loop(partial(self._left, lane, end, verdict))

    def _consume_in_thread(self, lane: _Lane) -> tuple[_End, Verdict]:
        listener = cast("Callable[[list[MessageExt]], Verdict]", self._listener)
        line, process_queue = lane.line, lane.process_queue
        until = self._clock.monotonic() + MAX_CONSUME_CONTINUOUSLY_S
        while line and self._clock.monotonic() < until and not futures._shutdown:  # Python waits for this thread
            request = line[0]
            process_queue.running.add(request)  # before looking: whoever drops the queue looks here afterwards
            if process_queue.dropped or not self._may_consume(process_queue):
                self._call_loop(partial(process_queue.skip, request))
                return _End.STOPPED, None
            try:
                verdict = listener(request.messages[:])
                if verdict is not None:
                    verdict = judged(request.messages, verdict, manual_commit=not self._auto_commit)
            except BaseException as error:
                verdict = raised(request.messages, error)
            if failed_part(request.messages, verdict):
                return _End.FAILED, verdict
            line.popleft()
            self._consumed.append((request, verdict))
            if not self._finishing:
                self._finishing = True
                self._call_loop(self._finish)
        return _End.PAUSE, None

    def _call_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.debug("the event loop ended before the listener did")

    def _finish(self) -> None:
        self._finishing = False
        consumed = self._consumed
        while consumed:
            self._succeeded(*consumed.popleft())
