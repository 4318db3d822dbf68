"""Offsets of queues and of groups, as brokers keep them."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client import DEFAULT_TIMEOUT_S
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

_NOT_FOUND: Final = int(ResponseCode.QUERY_NOT_FOUND)


class Offsets:
    """Asks the masters of queues for offsets, or while one is away its slave.

    Every call may raise ``BrokerError`` and ``RemotingError``.
    """

    def __init__(self, instance: ClientInstance, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._instance = instance
        self._timeout_s = timeout_s
        self._tables: set[tuple[str, str, str]] = set()
        """Group, topic and broker of the tables of offsets that a broker certainly has."""
        self._beginning: dict[tuple[str, str, str], asyncio.Lock] = {}

    async def min(self, queue: MessageQueue) -> int:
        """The first offset that is still there."""
        header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id)
        answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header, "asking for the first offset")
        return answer.header(GetMinOffsetResponseHeader).offset

    async def max(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)
        answer = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header, "asking for the end offset")
        return answer.header(GetMaxOffsetResponseHeader).offset

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to a time (Apache 4.9's rule)."""
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamp_ms)
        answer = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, "asking for an offset by time")
        return answer.header(SearchOffsetResponseHeader).offset

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the first message still there was stored, in ms; -1 for an empty queue."""
        header = GetEarliestMsgStoretimeRequestHeader(queue.topic, queue.queue_id)
        answer = await self._ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header, "asking for the earliest time")
        return answer.header(GetEarliestMsgStoretimeResponseHeader).timestamp

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Where a group goes on in a queue; ``None`` when the broker knows nothing of it.

        Apache answers 0 for a group it has never heard of while the queue's first message is young.
        """
        address = await self._instance.reader_of(queue)
        header = QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id)
        answer = await self._instance.remoting.invoke(
            address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_s=self._timeout_s
        )
        if answer.code == _NOT_FOUND:
            return None
        return (
            self._instance.expect(answer, address, "asking for a consumer offset")
            .header(QueryConsumerOffsetResponseHeader)
            .offset
        )

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let a group go on at ``offset``; returns when the broker has confirmed it.

        The first ones of a group in a topic go to a broker one at a time: Apache's makes the group's table
        of offsets when it has none, and of two requests that find none in two threads one is forgotten
        (``ConsumerOffsetManager.commitOffset``).
        """
        table = (group, queue.topic, queue.broker_name)
        if table in self._tables:
            await self._commit(group, queue, offset)
            return
        async with self._beginning.setdefault(table, asyncio.Lock()):
            await self._commit(group, queue, offset)
            self._tables.add(table)

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offset)
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, "committing an offset")

    async def _ask(self, queue: MessageQueue, code: int, header: Header, doing: str) -> RemotingCommand:
        address = await self._instance.reader_of(queue)
        what = f"{doing} of {queue.topic}/{queue.broker_name}/{queue.queue_id}"
        return await self._instance.call(address, code, header, doing=what, timeout_s=self._timeout_s)
