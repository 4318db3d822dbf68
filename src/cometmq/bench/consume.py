"""Reads a topic without a consumer group, so that no offsets are committed and other consumers are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from cometmq.bench.plan import STAMP, BenchError, Plan, Progress
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.errors import BrokerError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue

PULLED_AT_ONCE: Final = 1024
"""Number of messages requested per pull; Apache's brokers return at most 32 by default."""
WAIT_SECONDS: Final = 5.0

Take = Callable[[Sequence[MessageExt]], None]


class Readers:
    """Reads every queue of a topic over several connections.

    :param stack: stack that closes the connections.
    """

    def __init__(self, plan: Plan, namesrv: str, stack: AsyncExitStack) -> None:
        self._plan = plan
        self._namesrv = namesrv
        self._stack = stack
        self._places: list[tuple[PullConsumer, MessageQueue]] = []

    async def start(self) -> None:
        """Open the connections and divide the queues among them.

        :raises RouteNotFoundError: the topic does not exist.
        """
        consumers = [
            await self._stack.enter_async_context(PullConsumer(TOOLS_GROUP, self._namesrv))
            for _ in range(self._plan.connections)
        ]
        queues = await consumers[0].queues(self._plan.topic)
        self._places = [(consumers[index % len(consumers)], queue) for index, queue in enumerate(queues)]

    async def ends(self) -> dict[MessageQueue, tuple[int, int]]:
        """Return the start and end offset of each queue."""
        return {
            queue: (await consumer.offsets.min(queue), await consumer.offsets.max(queue))
            for consumer, queue in self._places
        }

    async def read(self, ranges: dict[MessageQueue, tuple[int, int]], take: Take, *, wait_s: float = 0.0) -> None:
        """Read every queue from its start offset to its end offset, and pass the messages to ``take``."""
        await asyncio.gather(
            *(self._queue(consumer, queue, *ranges[queue], take, wait_s) for consumer, queue in self._places)
        )

    async def _queue(
        self, consumer: PullConsumer, queue: MessageQueue, offset: int, end: int, take: Take, wait_s: float
    ) -> None:
        while offset < end:
            pulled = await consumer.pull(queue, offset, PULLED_AT_ONCE, wait_s=wait_s)
            wanted = [message for message in pulled.messages if message.queue_offset < end]
            take(wanted)
            if pulled.next_offset <= offset and not wait_s:
                raise BenchError(f"queue {queue.queue_id} on {queue.broker_name} ends at {offset}, not at {end}")
            offset = pulled.next_offset


async def consume(plan: Plan, namesrv: str, progress: Progress) -> int:
    """Read a topic's stored messages, up to ``plan.count`` or for ``plan.seconds`` seconds; return the number read.

    :raises BenchError: the topic is empty.
    """
    async with AsyncExitStack() as stack:
        readers = Readers(plan, namesrv, stack)
        await readers.start()
        ranges = await readers.ends()
        there = sum(end - begin for begin, end in ranges.values())
        if not there:
            raise BenchError(
                f"topic {plan.topic} has no messages",
                next_step="omit the topic to create and fill a temporary one",
            )
        wanted = there if plan.count is None else min(plan.count, there)
        enough = asyncio.Event()

        def take(messages: Sequence[MessageExt]) -> None:
            progress.received += len(messages)
            progress.body_bytes += sum(len(message.body) for message in messages)
            if progress.received >= wanted:
                enough.set()

        progress.begin = SYSTEM_CLOCK.monotonic()
        reading = asyncio.create_task(readers.read(ranges, take))
        ending = asyncio.create_task(enough.wait())
        try:
            await asyncio.wait((reading, ending), timeout=plan.seconds, return_when=asyncio.FIRST_COMPLETED)
            progress.end = SYSTEM_CLOCK.monotonic()
            if reading.done():
                reading.result()
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)
        return wanted


class Arrivals:
    """Records the messages received in a round trip, with their latencies."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen = bytearray()
        self.duplicates = 0
        self.foreign = 0
        """Number of messages that are not part of the load, because other clients wrote to the topic too."""
        self.arrived = asyncio.Event()

    def take(self, messages: Sequence[MessageExt]) -> None:
        """Record the messages from one pull."""
        now = SYSTEM_CLOCK.monotonic()
        for message in messages:
            body = message.body
            if len(body) < STAMP.size:
                self.foreign += 1
                continue
            number, due = STAMP.unpack_from(body)
            place, bit = number >> 3, 1 << (number & 7)
            if place >= len(self._seen):
                self._seen.extend(bytes(max(place + 1 - len(self._seen), 1 << 16)))
            if self._seen[place] & bit:
                self.duplicates += 1
                continue
            self._seen[place] |= bit
            self._progress.received += 1
            self._progress.count_latency(now - due)
        self.arrived.set()


async def follow(readers: Readers, arrivals: Arrivals, starts: dict[MessageQueue, tuple[int, int]]) -> None:
    """Read new messages until the task is cancelled."""
    endless = {queue: (end, 1 << 62) for queue, (_, end) in starts.items()}
    try:
        await readers.read(endless, arrivals.take, wait_s=WAIT_SECONDS)
    except BrokerError:
        raise BenchError("a broker rejected a pull", next_step="check the broker's log") from None
