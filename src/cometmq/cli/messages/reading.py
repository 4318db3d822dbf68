"""Reads messages for ``cometmq consume``: from queues, as a member of a group, or the last messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click

from cometmq.cli.messages.known_messages import KnownMessages
from cometmq.cli.output import notify
from cometmq.cli.servers.process import Stopping
from cometmq.client.consumer.config import ConsumeFromWhere, LitePullConfig
from cometmq.client.consumer.lite_pull_consumer import LitePullConsumer
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue

POLL_SECONDS: Final = 1.0
"""Seconds between two checks whether the end is reached, while no messages arrive."""
LAST_PULL_MESSAGES: Final = 1024
LIFE_SECONDS: Final = 10.0
"""Seconds between two checks for a recreated topic."""
WINDOW_GROWTH: Final = 8
"""With a filter, each step of ``--last`` searches this many times as many offsets as the step before."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Write = Callable[[list[MessageExt]], None]


class Offset(click.ParamType[int | str]):
    """A position in a queue: an offset, -N for N messages before its end, ``earliest`` or ``latest``."""

    name = "offset"

    def convert(self, value: int | str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse a value from the command line."""
        if isinstance(value, int) or value in (EARLIEST, LATEST):
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value} is not an offset; use a number, -10, earliest or latest", param, ctx)


@dataclass(frozen=True)
class Reading:
    """The messages that a command reads, and where it starts and stops."""

    topic: str
    group: str | None = None
    expression: str = "*"
    expression_type: str = "TAG"
    queues: tuple[int, ...] = ()
    """Numbers of the queues to read if there is no group, or empty for all queues."""
    offset: int | str = LATEST
    """Start position in every queue if there is no group. A new group starts at the beginning if this is ``earliest``,
    otherwise at the end.
    """
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    last: int | None = None
    limit: int | None = None
    until_end: bool = False
    is_traced: bool = False
    timeout_s: float | None = None
    """Time limit for the requests that precede the first message, in seconds."""

    def has(self, message: MessageExt) -> bool:
        """Return True if the message has the requested key and store time."""
        if self.key is not None and self.key not in message.keys:
            return False
        if self.group is not None:
            return True
        stored_ms = message.store_timestamp
        return stored_ms >= (self.since_ms or 0) and (self.until_ms is None or stored_ms <= self.until_ms)


class NotReadableError(CometMQError):
    """The topic has no readable queue."""


async def read(namesrv: str, reading: Reading, stopping: Stopping, write: Write) -> int:
    """Write messages until the requested end, or until the process is asked to stop. Return their number."""
    config = LitePullConfig(
        auto_commit=reading.group is not None,
        consume_from_where=_start_of_a_new_group(reading),
        consume_timestamp_ms=reading.since_ms or 0,
        enable_msg_trace=reading.is_traced,
    )
    async with (
        LitePullConsumer(reading.group or TOOLS_GROUP, namesrv, config=config) as consumer,
        PullConsumer(TOOLS_GROUP, instance=consumer.instance) as puller,
    ):
        try:
            async with asyncio.timeout(reading.timeout_s):
                queues = await _readable(consumer, reading)
                if reading.last is not None:
                    messages = await _last_messages(consumer, reading, reading.last, queues)
                    await asyncio.to_thread(write, messages)
                    return len(messages)
                ends = await _ends(consumer, queues)
                known = KnownMessages(puller)
                await known.begin(ends)
                follower = Follower(consumer, reading, write, ends, known)
                if reading.group is not None:
                    await consumer.subscribe(reading.topic, reading.expression, expression_type=reading.expression_type)
                else:
                    await _assign(consumer, reading, queues)
        except TimeoutError:
            raise CometMQError(
                f"topic {reading.topic} could not be opened in {reading.timeout_s:g} s",
                next_step="see which broker does not answer: cometmq cluster status",
            ) from None
        await follower.run(stopping)
        return follower.written


class Follower:
    """Writes the polled messages until the requested end.

    :param ends: the current maximum offset of each queue.
    """

    def __init__(
        self,
        consumer: LitePullConsumer,
        reading: Reading,
        write: Write,
        ends: Mapping[MessageQueue, int],
        known: KnownMessages,
    ) -> None:
        self._consumer = consumer
        self._reading = reading
        self._write = write
        self._ends = ends
        self._known = known
        self._look_at = SYSTEM_CLOCK.monotonic() + LIFE_SECONDS
        self._passed: set[MessageQueue] = set()
        """Queues from which a message later than ``until_ms`` has been read."""
        self._ends_are_last = reading.until_end or self._is_past_until()
        self.written = 0

    async def run(self, stopping: Stopping) -> None:
        """Poll and write messages until the end, or until the process is asked to stop."""
        limit = self._reading.limit
        stopped = asyncio.create_task(stopping.wait())
        while not stopping.requested and (limit is None or self.written < limit):
            most = self._consumer.config.max_poll_messages
            wanted = most if limit is None else min(most, limit - self.written)
            polled = asyncio.create_task(self._consumer.poll(POLL_SECONDS, max_messages=wanted))
            await asyncio.wait((polled, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not polled.done():
                polled.cancel()
                await asyncio.gather(polled, return_exceptions=True)
                break
            await self._write_messages(polled.result())
            if SYSTEM_CLOCK.monotonic() >= self._look_at:
                await self._check_for_new_queues()
                self._look_at = SYSTEM_CLOCK.monotonic() + LIFE_SECONDS
            if await self._is_at_end():
                break
        stopped.cancel()

    async def _check_for_new_queues(self) -> None:
        """Find queues that were deleted and created again, and read them from their beginning."""
        for queue in set(await self._known.recreated_queues()) & set(self._consumer.assignment):
            name = f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
            notify(f"The {name} was deleted and created again: reading it from its beginning.")
            await self._consumer.seek_to_begin(queue)

    async def _write_messages(self, messages: list[MessageExt]) -> None:
        self._known.read(messages)
        chosen = [message for message in messages if self._reading.has(message)]
        until_ms = self._reading.until_ms
        if until_ms is not None:
            late = {
                MessageQueue(self._reading.topic, message.broker_name, message.queue_id)
                for message in messages
                if message.store_timestamp > until_ms
            }
            self._passed |= late
            self._consumer.pause(late)
        if chosen:
            await asyncio.to_thread(self._write, chosen)
            self.written += len(chosen)

    async def _is_at_end(self) -> bool:
        """Return True if this member and the other members of its group have written all requested messages."""
        if not self._ends_are_last and self._is_past_until():
            self._ends = await _ends(self._consumer, self._ends)
            self._ends_are_last = True
        if not self._ends_are_last:
            return False
        mine = [queue for queue in self._consumer.assignment if queue in self._ends]
        if not mine and self._reading.group is not None:
            return await self._others_are_at_end()
        return bool(mine) and all(
            queue in self._passed or (self._consumer.position(queue) or 0) >= self._ends[queue] for queue in mine
        )

    async def _others_are_at_end(self) -> bool:
        """Return True if the group has consumed all messages. A member without a queue waits for the other members."""
        committed = [await self._consumer.committed(queue) for queue in self._ends]
        return all((at or 0) >= end for at, end in zip(committed, self._ends.values(), strict=True))

    def _is_past_until(self) -> bool:
        until_ms = self._reading.until_ms
        return until_ms is not None and SYSTEM_CLOCK.now_ms() > until_ms


def _start_of_a_new_group(reading: Reading) -> ConsumeFromWhere:
    if reading.since_ms is not None:
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    if reading.offset == EARLIEST:
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


async def _readable(consumer: LitePullConsumer, reading: Reading) -> list[MessageQueue]:
    """Return the queues to read.

    :raises NotReadableError: the topic is not readable, or a queue does not exist.
    """
    queues = await consumer.queues(reading.topic)
    if not queues:
        raise NotReadableError(
            f"topic {reading.topic} is not readable",
            next_step=f"allow it with cometmq topic alter {reading.topic} --permission rw",
        )
    for number in reading.queues:
        if number not in {queue.queue_id for queue in queues}:
            raise NotReadableError(
                f"topic {reading.topic} has no queue {number}",
                next_step=f"list its queues with cometmq topic stats {reading.topic}",
            )
    return [queue for queue in queues if not reading.queues or queue.queue_id in reading.queues]


async def _ends(
    consumer: LitePullConsumer, queues: Sequence[MessageQueue] | Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    return dict(zip(queues, await asyncio.gather(*map(consumer.offsets.max, queues)), strict=True))


async def _assign(consumer: LitePullConsumer, reading: Reading, queues: Sequence[MessageQueue]) -> None:
    """Assign the queues, and seek to the requested start."""
    await consumer.assign(queues, reading.expression, expression_type=reading.expression_type)
    for queue in queues:
        offset = reading.offset
        if reading.since_ms is not None:
            await consumer.seek_to_time(queue, reading.since_ms)
        elif offset == EARLIEST:
            await consumer.seek_to_begin(queue)
        elif isinstance(offset, int):
            low, high = await consumer.offsets.min(queue), await consumer.offsets.max(queue)
            await consumer.seek(queue, min(max(offset if offset >= 0 else high + offset, low), high))
        else:
            await consumer.seek_to_end(queue)


async def _last_messages(
    consumer: LitePullConsumer, reading: Reading, count: int, queues: Sequence[MessageQueue]
) -> list[MessageExt]:
    """Return the last ``count`` matching messages from all queues together, in the order in which they were stored."""
    async with PullConsumer(TOOLS_GROUP, instance=consumer.instance) as puller:
        parts = await asyncio.gather(*(_last_of_queue(puller, reading, count, queue) for queue in queues))
    found = sorted(
        (message for part in parts for message in part),
        key=lambda message: (message.store_timestamp, message.broker_name, message.commit_log_offset),
    )
    return found[-count:]


async def _last_of_queue(puller: PullConsumer, reading: Reading, count: int, queue: MessageQueue) -> list[MessageExt]:
    """Return the last matching messages in one queue. If there are too few, extend the search to older messages."""
    low, end = await puller.offsets.min(queue), await puller.offsets.max(queue)
    found: list[MessageExt] = []
    start, window = end, count
    while start > low and len(found) < count:
        before, start = start, max(low, end - window)
        found = await _between(puller, reading, queue, start, before) + found
        window *= WINDOW_GROWTH
    return found[-count:]


async def _between(
    puller: PullConsumer, reading: Reading, queue: MessageQueue, start: int, end: int
) -> list[MessageExt]:
    found: list[MessageExt] = []
    while start < end:
        result = await puller.pull(
            queue,
            start,
            min(LAST_PULL_MESSAGES, end - start),
            expression=reading.expression,
            expression_type=reading.expression_type,
        )
        found += (message for message in result.messages if message.queue_offset < end and reading.has(message))
        if result.next_offset <= start:
            break
        start = result.next_offset
    return found
