"""Sends a load, and measures latency from the time each message was due until its broker has stored it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from cometmq.bench.plan import STAMP, Plan, Progress
from cometmq.client.pace import Pace
from cometmq.client.producer.producer import Producer
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send_result import PartlySentError, SendResult
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.message.message import Message

GROUP: Final = "cometmq-bench"
MAX_FAILURES: Final = 100
"""Number of failures after which the load is aborted, because measuring an unreachable broker is pointless."""
_YIELD_EVERY: Final = 64
"""Number of sends after which responses are handled even if nothing else is pending."""


async def produce(plan: Plan, namesrv: str, progress: Progress, *, stamped: bool = False) -> None:
    """Send a load according to its plan, and record the results in ``progress``.

    If a rate is set, latency is measured from the time at which a message was due, not from the time at which it was
    sent. If a broker stops for a second, all messages of that second are late.

    :param stamped: bodies begin with :data:`~cometmq.bench.plan.STAMP`.
    """
    async with AsyncExitStack() as stack:
        config = ProducerConfig(compress_over_bytes=max(plan.size + 1, 4096))
        producers = [
            await stack.enter_async_context(Producer(f"{GROUP}-{number}", namesrv, config=config))
            for number in range(plan.connections)
        ]
        for producer in producers:  # open routes and connections before the measurement starts
            await producer.instance.routes.refresh(plan.topic)
        load = _Load(plan, progress, stamped=stamped)
        progress.begin = load.now()
        try:
            await asyncio.gather(*(load.run(producer) for producer in producers))
        finally:
            progress.end = load.now()


class _Load:
    """Distributes the load's next messages among its connections, and keeps to its rate."""

    def __init__(self, plan: Plan, progress: Progress, *, stamped: bool) -> None:
        self._plan = plan
        self._progress = progress
        self._pace = Pace(plan.rate)
        self._filling = os.urandom(max(0, plan.size - STAMP.size)) if stamped else os.urandom(plan.size)
        self._stamped = stamped
        self._next = 0
        self.now: Callable[[], float] = SYSTEM_CLOCK.monotonic

    def _claim_next(self) -> int:
        """Return the number of messages for the next request, or 0 at the end."""
        plan = self._plan
        if self._progress.failed >= MAX_FAILURES:
            return 0
        if plan.seconds is not None and self.now() - self._progress.begin >= plan.seconds:
            return 0
        left = plan.batch if plan.count is None else min(plan.batch, plan.count - self._next)
        self._next += max(0, left)
        return max(0, left)

    async def run(self, producer: Producer) -> None:
        """Send messages over one connection until none are left."""
        in_flight = _InFlight(self._plan.in_flight)
        requests = 0
        try:
            while messages := self._claim_next():
                first = self._next - messages
                await in_flight.free()
                due = self.now()
                wait_s = self._pace.take(messages)
                if wait_s > 0:
                    await SYSTEM_CLOCK.sleep(wait_s)
                    due = min(due + wait_s, self.now())  # timers may fire slightly early
                in_flight.enter()
                self._start(producer, first, messages, due, in_flight)
                requests += 1
                if requests % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            await in_flight.empty()

    def _start(self, producer: Producer, first: int, messages: int, due: float, in_flight: _InFlight) -> None:
        batch = [Message(self._plan.topic, self._body(first + number, due)) for number in range(messages)]

        def on_result(outcome: object) -> None:
            in_flight.leave()
            if isinstance(outcome, BaseException):
                self._progress.fail(1, outcome)
            else:
                self._count_stored(1, self.now() - due)

        if messages == 1:
            producer.send_then(batch[0], None, None, None, None, on_result)
        else:
            in_flight.keep(asyncio.create_task(self._batch(producer, batch, due, in_flight)))

    async def _batch(self, producer: Producer, batch: list[Message], due: float, in_flight: _InFlight) -> None:
        try:
            await producer.send_batch(batch)
            self._count_stored(len(batch), self.now() - due)
        except PartlySentError as error:
            sent = sum(isinstance(outcome, SendResult) for outcome in error.outcomes)
            self._progress.fail(len(batch) - sent, error)
            self._count_stored(sent, self.now() - due)
        except CometMQError as error:
            self._progress.fail(len(batch), error)
        finally:
            in_flight.leave()

    def _count_stored(self, messages: int, latency_s: float) -> None:
        progress = self._progress
        progress.sent += messages
        progress.body_bytes += messages * self._plan.size
        for _ in range(messages):
            progress.count_latency(latency_s)

    def _body(self, number: int, due: float) -> bytes:
        return STAMP.pack(number, due) + self._filling if self._stamped else self._filling


class _InFlight:
    """The requests in flight on one connection."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        self._changed.set()

    async def free(self) -> None:
        """Wait until another request can be sent."""
        await self._wait_for_at_most(self._limit - 1)

    async def empty(self) -> None:
        """Wait until all responses have arrived."""
        await self._wait_for_at_most(0)

    async def _wait_for_at_most(self, limit: int) -> None:
        while self._count > limit:
            self._changed.clear()
            await self._changed.wait()
