"""Finds a topic's newest messages in a time range by searching each queue backwards from its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.subscription import ALL, TAG
from cometmq.client.offsets import Offsets
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue

T = TypeVar("T")

QUEUES_AT_ONCE: Final = 16
FIRST_WINDOW: Final = 64
"""Number of offsets in the first window of a queue; each further window is four times as large."""
LAST_WINDOW: Final = 2_048


@dataclass(frozen=True)
class Search:
    """A search for a topic's newest messages."""

    topic: str
    begin_ms: int | None = None
    """Minimum store time, in milliseconds since 1970."""
    end_ms: int | None = None
    """End of the range of store times (exclusive), in milliseconds since 1970."""
    expression: str = ALL
    expression_type: str = TAG
    wanted: int = 64
    """Maximum number of messages."""
    effort: int = 50_000
    """Maximum total number of offsets to scan in all queues."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """The newest messages, sorted from newest to oldest."""

    messages: Sequence[T]
    looked_at: int
    """Number of scanned offsets."""
    is_complete: bool
    """False if the search ended at its limit, so that older messages may also match."""


async def newest(consumer: PullConsumer, search: Search, keep: Callable[[MessageExt], T]) -> Found[T]:
    """Find the newest messages that match a search.

    :param consumer: any running consumer; the search commits nothing.
    :param keep: returns the part of a message to keep, since bodies are large.
    :raises RouteNotFoundError: no nameserver knows the topic.
    :raises BrokerError: a broker refuses, for example because it cannot filter by SQL92.
    """
    queues = await consumer.queues(search.topic)
    effort = max(search.effort // max(1, len(queues)), FIRST_WINDOW)
    room = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def one(queue: MessageQueue) -> _QueueResult[T]:
        async with room:
            return await _search_queue(consumer, queue, search, effort, keep)

    parts = await asyncio.gather(*map(one, queues))
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row[0], reverse=True)
    return Found(
        [kept for _, kept in rows[: search.wanted]],
        sum(part.looked_at for part in parts),
        all(part.is_complete for part in parts) or len(rows) > search.wanted,
    )


@dataclass(frozen=True)
class _QueueResult(Generic[T]):
    rows: list[tuple[tuple[int, int], T]]
    """The matching messages with their store times and offsets."""
    looked_at: int
    is_complete: bool


async def _search_queue(
    consumer: PullConsumer, queue: MessageQueue, search: Search, effort: int, keep: Callable[[MessageExt], T]
) -> _QueueResult[T]:
    offsets: Offsets = consumer.offsets
    low, high = await offsets.min(queue), await offsets.max(queue)
    if search.begin_ms is not None and low < high:
        low = max(low, await offsets.at_time(queue, search.begin_ms))
    if search.end_ms is not None and low < high:
        high = min(high, await offsets.at_time(queue, search.end_ms))
    rows: list[tuple[tuple[int, int], T]] = []
    looked_at, window = 0, FIRST_WINDOW
    while high > low and len(rows) < search.wanted and looked_at < effort:
        start = max(low, high - window)
        rows += [
            ((message.store_timestamp, message.queue_offset), keep(message))
            for message in await _between(consumer, queue, start, high, search)
            if (search.begin_ms is None or message.store_timestamp >= search.begin_ms)
            and (search.end_ms is None or message.store_timestamp < search.end_ms)
        ]
        looked_at += high - start
        high, window = start, min(window * 4, LAST_WINDOW)
    rows.sort(key=lambda row: row[0], reverse=True)
    return _QueueResult(rows[: search.wanted], looked_at, high <= low or len(rows) >= search.wanted)


async def _between(
    consumer: PullConsumer, queue: MessageQueue, start: int, end: int, search: Search
) -> list[MessageExt]:
    found: list[MessageExt] = []
    while start < end:
        result = await consumer.pull(
            queue,
            start,
            min(end - start, 256),
            expression=search.expression,
            expression_type=search.expression_type,
        )
        found += (message for message in result.messages if message.queue_offset < end)
        if result.next_offset <= start:
            break
        start = result.next_offset
    return found
