"""Sends a load, and measures the time from the moment a message was due until its broker has stored it."""

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
MOST_FAILURES: Final = 100
"""Maximum number of failures, after which a load ends, since an unreachable broker provides no figures."""
_YIELD_EVERY: Final = 64
"""Number of sends after which responses are handled, if nothing else is pending."""


async def produce(plan: Plan, namesrv: str, progress: Progress, *, stamped: bool = False) -> None:
    """Send the load of a plan, and count in ``progress``.

    With a rate, latency is measured from the time at which a message was due, not from the time at which it was sent.
    If a broker stops for a second, all messages of that second are late.

    :param stamped: bodies begin with :data:`~cometmq.bench.plan.STAMP`.
    """
    async with AsyncExitStack() as stack:
        config = ProducerConfig(compress_over_bytes=max(plan.size + 1, 4096))
        producers = [
            await stack.enter_async_context(Producer(f"{GROUP}-{number}", namesrv, config=config))
            for number in range(plan.connections)
        ]
        for producer in producers:  # routes and connections stand before the clock runs
            await producer.instance.routes.refresh(plan.topic)
        load = _Load(plan, progress, stamped=stamped)
        progress.begin = load.now()
        try:
            await asyncio.gather(*(load.run(producer) for producer in producers))
        finally:
            progress.end = load.now()


class _Load:
    """Hands out the messages of all connections, one after the other."""

    def __init__(self, plan: Plan, progress: Progress, *, stamped: bool) -> None:
        self._plan = plan
        self._progress = progress
        self._pace = Pace(plan.rate)
        self._filling = os.urandom(max(0, plan.size - STAMP.size)) if stamped else os.urandom(plan.size)
        self._stamped = stamped
        self._next = 0
        self.now: Callable[[], float] = SYSTEM_CLOCK.monotonic

    def _claim(self) -> int:
        """Return the number of messages of the next request, or 0 at the end."""
        plan = self._plan
        if self._progress.failed >= MOST_FAILURES:
            return 0
        if plan.seconds is not None and self.now() - self._progress.begin >= plan.seconds:
            return 0
        left = plan.batch if plan.count is None else min(plan.batch, plan.count - self._next)
        self._next += max(0, left)
        return max(0, left)

    async def run(self, producer: Producer) -> None:
        """Send over one connection until nothing is left."""
        room = _Room(self._plan.in_flight)
        requests = 0
        try:
            while messages := self._claim():
                first = self._next - messages
                await room.free()
                due = self.now()
                wait_s = self._pace.take(messages)
                if wait_s > 0:
                    await SYSTEM_CLOCK.sleep(wait_s)
                    due = min(due + wait_s, self.now())  # timers may be a little early
                room.enter()
                self._start(producer, first, messages, due, room)
                requests += 1
                if requests % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            await room.empty()

    def _start(self, producer: Producer, first: int, messages: int, due: float, room: _Room) -> None:
        made = [Message(self._plan.topic, self._body(first + number, due)) for number in range(messages)]

        def done(outcome: object) -> None:
            room.leave()
            if isinstance(outcome, BaseException):
                self._progress.fail(1, outcome)
            else:
                self._stored(1, self.now() - due)

        if messages == 1:
            producer.send_then(made[0], None, None, None, None, done)
        else:
            room.keep(asyncio.create_task(self._batch(producer, made, due, room)))

    async def _batch(self, producer: Producer, made: list[Message], due: float, room: _Room) -> None:
        try:
            await producer.send_batch(made)
            self._stored(len(made), self.now() - due)
        except PartlySentError as error:
            good = sum(isinstance(outcome, SendResult) for outcome in error.outcomes)
            self._progress.fail(len(made) - good, error)
            self._stored(good, self.now() - due)
        except CometMQError as error:
            self._progress.fail(len(made), error)
        finally:
            room.leave()

    def _stored(self, messages: int, latency_s: float) -> None:
        progress = self._progress
        progress.sent += messages
        progress.body_bytes += messages * self._plan.size
        for _ in range(messages):
            progress.took(latency_s)

    def _body(self, number: int, due: float) -> bytes:
        return STAMP.pack(number, due) + self._filling if self._stamped else self._filling


class _Room:
    """The requests in flight on one connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def enter(self) -> None:
        self._taken += 1

    def leave(self) -> None:
        self._taken -= 1
        self._changed.set()

    async def free(self) -> None:
        """Wait until another request may be sent."""
        await self._until(self._most - 1)

    async def empty(self) -> None:
        """Wait until all responses have arrived."""
        await self._until(0)

    async def _until(self, most: int) -> None:
        while self._taken > most:
            self._changed.clear()
            await self._changed.wait()
