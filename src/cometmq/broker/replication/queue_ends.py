"""The first offsets of a slave's queues whose messages are all older than the slave's log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cometmq.broker.limits import SLAVE_QUESTIONS_AT_ONCE, TABLE_ROWS_PER_SLICE
from cometmq.broker.replication.ha_client import get_log_range
from cometmq.broker.replication.table_changes import ENDS, MasterTables
from cometmq.broker.slices import batches
from cometmq.message.names import TRANS_OP_HALF_TOPIC
from cometmq.remoting.admin_bodies import TopicStatsTable
from cometmq.remoting.admin_headers import GetTopicStatsInfoRequestHeader
from cometmq.remoting.bodies import TopicConfig, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.message_store import MessageStore

_QUEUES_PER_SLICE = TABLE_ROWS_PER_SLICE // 10


class QueueEnds:
    """Sets the first offsets of queues whose messages are all older than a slave's log.

    Such a queue is empty on the slave, and would begin at 0 if the slave became the master, although consumer offsets
    are larger and delayed messages are identified by their queue offsets. Therefore a slave requests the ends of all
    queues from the master once. When the slave's log has reached the end that the master's log had at that time, queues
    without messages begin at these ends.
    """

    def __init__(self, store: MessageStore, client: RemotingClient) -> None:
        self._store = store
        self._client = client
        self._ends: dict[tuple[str, int], int] | None = None
        self._true_at = 0
        """Log offset at which the messages of a queue that is still empty are known to be older than the log."""

    async def copy(self, master: str, tables: MasterTables, topics: Mapping[str, TopicConfig]) -> None:
        """Request the ends of the queues once, and set the queues' first offsets as soon as possible.

        :raises ReplicationError: the master's answer is invalid.
        :raises RemotingError: the master does not answer.
        :raises BodyError: the answer is malformed.
        :raises StoreError: a queue cannot be written.
        """
        if self._ends is None:
            found: dict[tuple[str, int], int] = {}
            ends = await tables.changes(ENDS)
            if ends is None:
                lacking = [topic.topic_name for topic in topics.values() if self._lacks(topic)]
                for names in batches([*lacking, TRANS_OP_HALF_TOPIC], SLAVE_QUESTIONS_AT_ONCE):
                    for answer in await asyncio.gather(*(self._ask_for_ends(master, name) for name in names)):
                        found |= answer
            else:
                for some in batches(ends.rows(dict[int, int]), _QUEUES_PER_SLICE):
                    found |= {
                        (topic, queue_id): end
                        for topic, queues in some
                        for queue_id, end in queues.items()
                        if not self._store.stored_end(topic, queue_id)
                    }
                    await asyncio.sleep(0)
            _, self._true_at, _ = await get_log_range(self._client, master)
            self._ends = found
        if self._store.max_physical_offset >= self._true_at:
            for queues in batches(self._ends.items(), _QUEUES_PER_SLICE):
                for (topic, queue_id), end in queues:
                    self._store.replicated.begin_queue(topic, queue_id, end)
                await asyncio.sleep(0)
            self._ends = {}

    def _lacks(self, topic: TopicConfig) -> bool:
        return not all(
            self._store.stored_end(topic.topic_name, queue_id)
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        )

    async def _ask_for_ends(self, master: str, topic: str) -> dict[tuple[str, int], int]:
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        answer = await self._client.invoke(master, RequestCode.GET_TOPIC_STATS_INFO, header)
        if answer.code != ResponseCode.SUCCESS:
            return {}  # a topic that it has deleted since, or that Apache's broker never lists
        table = decode_body(TopicStatsTable, answer.body).offset_table
        return {(topic, queue.queue_id): offsets.max_offset for queue, offsets in table.items() if offsets.max_offset}
