"""QueueEnds: where queues go on whose messages are all older than a slave's log.

Such a queue is empty here, and would begin at 0 once the slave is the master: consumers are beyond that, and messages
that wait are known by their queue offsets. So a slave asks its master once for the ends of its queues; when the log
here has come up to where the master's ended then, those still without a message here begin there.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.broker.replication.master_log import log_range
from cometmq.message.names import TRANS_OP_HALF_TOPIC
from cometmq.remoting.bodies import TopicConfig, TopicStatsTable, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetTopicStatsInfoRequestHeader
from cometmq.store.message_store import MessageStore


class QueueEnds:
    """What one slave has learned of its master's queues."""

    def __init__(self, store: MessageStore, client: RemotingClient) -> None:
        self._store = store
        self._client = client
        self._ends: dict[tuple[str, int], int] | None = None
        self._true_at = 0
        """The log offset by which each end that is not reached here is that of messages before the log here."""

    async def copy(self, master: str, topics: Iterable[TopicConfig]) -> None:
        """Ask, if that was not done, then let queues begin that can.

        :raises ReplicationError: the master's answer cannot be used.
        :raises RemotingError: it does not answer.
        :raises BodyError: its answer cannot be read.
        :raises StoreError: a queue cannot be written.
        """
        if self._ends is None:
            found: dict[tuple[str, int], int] = {}
            for name in [topic.topic_name for topic in topics if self._lacks(topic)] + [TRANS_OP_HALF_TOPIC]:
                found |= await self._ask(master, name)
            _, self._true_at = await log_range(self._client, master)
            self._ends = found
        if self._store.max_physical_offset >= self._true_at:
            for (topic, queue_id), end in self._ends.items():
                self._store.replicated.begin_queue(topic, queue_id, end)
            self._ends = {}

    def _lacks(self, topic: TopicConfig) -> bool:
        queues = self._store.queues().get(topic.topic_name, {})
        return any(
            queue_id not in queues or not queues[queue_id].max_offset()
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        )

    async def _ask(self, master: str, topic: str) -> dict[tuple[str, int], int]:
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        answer = await self._client.invoke(master, RequestCode.GET_TOPIC_STATS_INFO, header)
        if answer.code != ResponseCode.SUCCESS:
            return {}  # of a topic that it has deleted since, or, in Apache's, never lists
        table = decode_body(TopicStatsTable, answer.body).offset_table
        return {(topic, queue.queue_id): offsets.max_offset for queue, offsets in table.items() if offsets.max_offset}
