"""How far groups are: of one group (208), of all (317), in time (303).

(``AdminBrokerProcessor``.)
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

from cometmq.broker.clients import ConsumerManager
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.slices import Steps, batches, members, run_in_slices, slices
from cometmq.broker.stats import GROUP_GET_NUMS, BrokerStats
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.limits import MAX_FRAME_BYTES, QUEUES_PER_SLICE
from cometmq.remoting.bodies import (
    MessageQueue,
    OffsetWrapper,
    QueueTimeSpan,
    TopicConfig,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_TOO_LARGE: Final = (
    f"the progress of all groups is larger than an answer can be, {MAX_FRAME_BYTES} bytes: ask for each group alone, "
    "as consumerProgress -g does"
)


class ProgressAdmin:
    """Answers administrators about the progress of consumer groups."""

    def __init__(
        self,
        broker_name: str,
        address: str,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        store: MessageStore,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._address = address
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._stats = stats
        self._clock = clock

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about progress."""
        code = RequestCode
        processors.register(code.GET_CONSUME_STATS, GetConsumeStatsRequestHeader, self.of_group)
        processors.register(code.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader, self.of_all_groups)
        processors.register(code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader, self.in_time)

    def of_group(
        self, connection: ServerConnection, request: Request[GetConsumeStatsRequestHeader], _body: bytes
    ) -> Response | None:
        """GET_CONSUME_STATS (208): one group, in one topic or in all that it has offsets of."""
        return run_in_slices(connection, request, self._of_group(request.header))

    def _of_group(self, header: GetConsumeStatsRequestHeader) -> Steps:
        group = header.consumer_group
        names = [header.topic] if header.topic else [topic for topic, _ in self._offsets.of_group(group)]
        consume_tps = 0.0
        topics: list[TopicConfig] = []
        for some_names in batches(names, QUEUES_PER_SLICE):
            if topics:
                yield
            for topic in self._consumed(group, some_names):
                topics.append(topic)
                consume_tps += self._stats.per_minute(GROUP_GET_NUMS, f"{topic.topic_name}@{group}").tps
        parts: list[bytes] = []
        wanted = ((topic.topic_name, queue_id) for topic in topics for queue_id in range(topic.read_queue_nums))
        for some in slices(wanted):
            if parts:
                yield
            parts.append(members({self._queue(name, at): self._offset(group, name, at) for name, at in some}))
        body = b'{"consumeTps":%s,"offsetTable":{%s}}' % (encode_body(consume_tps), b",".join(parts))
        return Response(body=body)

    def of_all_groups(
        self, connection: ServerConnection, request: Request[GetConsumeStatsInBrokerHeader], _body: bytes
    ) -> Response | None:
        """GET_BROKER_CONSUME_STATS (317): every group of this broker, topic by topic."""
        return run_in_slices(connection, request, self._of_all_groups(request.header.is_order))

    def _of_all_groups(self, is_order: bool) -> Steps:
        listed: list[bytes] = []
        total_diff = seen = size = 0
        for group in list(self._groups.table):
            progress: list[bytes] = []
            seen += 1
            for name, _ in self._offsets.of_group(group):
                seen += 1
                if seen >= QUEUES_PER_SLICE:
                    seen = 0
                    yield
                topic = next(iter(self._consumed(group, [name])), None)
                if topic is None or (is_order and not topic.order):
                    continue
                parts: list[bytes] = []
                for queue_ids in batches(range(topic.write_queue_nums), QUEUES_PER_SLICE):
                    table = {self._queue(name, at): self._offset(group, name, at) for at in queue_ids}
                    total_diff += sum(queue.broker_offset - queue.consumer_offset for queue in table.values())
                    parts.append(members(table))
                    seen += len(queue_ids)
                    if seen >= QUEUES_PER_SLICE:
                        seen = 0
                        yield
                tps = self._stats.per_minute(GROUP_GET_NUMS, f"{name}@{group}").tps
                progress.append(b'{"consumeTps":%s,"offsetTable":{%s}}' % (encode_body(tps), b",".join(parts)))
                size += len(progress[-1])
                if size > MAX_FRAME_BYTES:
                    return Response(ResponseCode.SYSTEM_ERROR, remark=_TOO_LARGE)
            listed.append(b"{%s:[%s]}" % (encode_body(group), b",".join(progress)))
            if seen >= QUEUES_PER_SLICE:
                seen = 0
                yield
        return Response(
            body=b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d}'
            % (encode_body(self._address), b",".join(listed), total_diff)
        )

    def _consumed(self, group: str, names: Iterable[str]) -> Iterable[TopicConfig]:
        """Those topics that exist and that the group, while it has members, still subscribes to."""
        online = self._consumers.get(group)
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and (online is None or not online.subscriptions or name in online.subscriptions):
                yield topic

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    def _offset(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        queue = self._store.queues().get(topic, {}).get(queue_id)
        consumed = max(self._offsets.query(group, topic, queue_id), 0)
        last = self._store.store_time(topic, queue_id, consumed - 1) if consumed > 0 and queue is not None else 0
        return OffsetWrapper(
            broker_offset=0 if queue is None else max(queue.max_offset(), 0),
            consumer_offset=consumed,
            last_timestamp=max(last, 0),
        )

    def in_time(
        self, connection: ServerConnection, request: Request[QueryConsumeTimeSpanRequestHeader], _body: bytes
    ) -> Response | None:
        """QUERY_CONSUME_TIME_SPAN (303): when a queue's first, last and last consumed messages were stored.

        ``delayTime`` is how long the next message to consume has been waiting, in ms; 0 when there is none.
        """
        name, group = request.header.topic, request.header.group
        topic = self._topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        return run_in_slices(connection, request, self._in_time(name, group, topic.write_queue_nums))

    def _in_time(self, name: str, group: str, queue_nums: int) -> Steps:
        parts: list[bytes] = []
        for queue_ids in slices(range(queue_nums)):
            if parts:
                yield
            parts.append(members([self._time_span(name, group, queue_id) for queue_id in queue_ids]))
        return Response(body=b'{"consumeTimeSpanSet":[%s]}' % b",".join(parts))

    def _time_span(self, name: str, group: str, queue_id: int) -> QueueTimeSpan:
        queue = self._store.queues().get(name, {}).get(queue_id)
        begin, end = (0, 0) if queue is None else (queue.min_offset(), queue.max_offset())

        def stored_at(offset: int) -> int:
            return self._store.store_time(name, queue_id, offset) if begin <= offset < end else -1

        consumed = max(self._offsets.query(group, name, queue_id), begin)
        earliest = stored_at(begin)
        consumed_at = stored_at(consumed - 1) if consumed > begin else earliest
        latest = stored_at(end - 1)
        return QueueTimeSpan(
            message_queue=self._queue(name, queue_id),
            min_time_stamp=earliest,
            max_time_stamp=latest,
            consume_time_stamp=consumed_at,
            delay_time=self._clock.now_ms() - stored_at(consumed) if consumed < end else 0,
            min_time_stamp_str=_local_text(earliest),
            max_time_stamp_str=_local_text(latest),
            consume_time_stamp_str=_local_text(consumed_at),
        )


def _local_text(timestamp_ms: int) -> str:
    """``2026-11-21#03:49:47:528``, local time, as ``UtilAll.formatDate`` writes it."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{milliseconds:03d}"
