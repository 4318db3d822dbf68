"""Queue offsets and consumer group offsets on the brokers (``RemoteBrokerOffsetStore``)."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from cometmq.client import queries
from cometmq.client.instance import ClientInstance
from cometmq.client.machines import run_async
from cometmq.client.queries import Query, first_at
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client import DEFAULT_TIMEOUT_S
from cometmq.remoting.errors import RemotingError

T = TypeVar("T")


class _Beginning:
    """The first commits of a group in a topic on a broker."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failure: RemotingError | None = None


class Offsets:
    """Reads and commits offsets on a queue's master, or on its slave while the master is unavailable.

    Every call can raise ``BrokerError`` (refused) and ``RemotingError`` (no answer).

    :param group: the group that pulls messages to read their store times.
    """

    def __init__(
        self, instance: ClientInstance, timeout_s: float = DEFAULT_TIMEOUT_S, *, group: str = TOOLS_GROUP
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout_s = timeout_s
        self._tables: set[tuple[str, str, str]] = set()
        """The (group, topic, broker) combinations for which the broker certainly has an offset table."""
        self._beginning: dict[tuple[str, str, str], _Beginning] = {}
        self._committing: dict[tuple[str, MessageQueue], asyncio.Lock] = {}

    async def min(self, queue: MessageQueue) -> int:
        """Return the first offset that is still stored."""
        return await self._ask(queue, queries.first_offset(queue))

    async def max(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._ask(queue, queries.end_offset(queue))

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (ms), or the queue's end if there is
        none.
        """
        search = first_at(queue, self._group, await self.min(queue), await self.max(queue), timestamp_ms)
        return await run_async(search, lambda query: self._ask(queue, query))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return the store time of the first message in milliseconds since 1970, or -1 if the queue is empty."""
        return await self._ask(queue, queries.earliest_store_time(queue))

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset, or ``None`` if there is none.

        Apache's broker answers 0 for an unknown group while the queue's first message is young.
        """
        return await self._ask(queue, queries.committed_offset(group, queue))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` for a group; return when the broker has confirmed it.

        The commits of one queue are sent to the broker one at a time, in the order of the calls: a broker with several
        threads may handle two commits in the wrong order. The first commits of a group in a topic are also sent one at
        a time: Apache's broker creates the group's table on the first commit, and if two threads do so at the same
        time, one commit is lost (``ConsumerOffsetManager.commitOffset``). If one of them receives no answer, the
        waiting commits also fail.
        """
        table = (group, queue.topic, queue.broker_name)
        async with self._committing.setdefault((group, queue), asyncio.Lock()):
            if table in self._tables:
                await self._ask(queue, queries.commit(group, queue, offset))
                return
            beginning = self._beginning.setdefault(table, _Beginning())
            has_waited = beginning.lock.locked()
            async with beginning.lock:
                if has_waited and beginning.failure is not None:
                    raise beginning.failure
                try:
                    await self._ask(queue, queries.commit(group, queue, offset))
                except RemotingError as error:
                    beginning.failure = error
                    raise
                beginning.failure = None
                self._tables.add(table)

    async def _ask(self, queue: MessageQueue, query: Query[T]) -> T:
        address = await self._instance.reader_of(queue)
        timeout_s = self._timeout_s
        answer = await self._instance.remoting.invoke(address, query.code, query.header, timeout_s=timeout_s)
        return query.result(answer, address)
