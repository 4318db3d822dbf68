"""Administration of consumer offsets: read, compare, clone and reset them, and show the progress of groups."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Generator, Iterator, Mapping
from typing import Final

from msgspec import UNSET

from cometmq import fastjson
from cometmq.broker.admin.topics import DEFAULT_REMARK
from cometmq.broker.archived.searches import NOT_NOW, find_first
from cometmq.broker.context import BrokerContext
from cometmq.broker.slices import Slice, Steps, members, run_in_slices, slices
from cometmq.broker.statistics.stats import GROUP_GET_NUMS
from cometmq.broker.tables.queue_offsets import NO_OFFSET, QueueOffsets
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.message.names import check_group
from cometmq.remoting.admin_bodies import MessageQueueForC, OffsetWrapper, QueryCorrectionOffsetBody, QueueTimeSpan
from cometmq.remoting.admin_headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from cometmq.remoting.bodies import MessageQueue, TopicConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, request_command
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster, needs_group, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

LATEST: Final = -1
"""The timestamp that stands for the end of each queue."""
_OLDEST_RESET_VERSION: Final = 28
"""V3_0_7_SNAPSHOT, the first client version that understands RESET_CONSUMER_CLIENT_OFFSET."""
_OVERTAKEN: Final = 2**63 - 1
_LEAST_QUEUE_BYTES: Final = 98
"""Minimum size in bytes of a queue's progress in a response."""
_TOO_LARGE: Final = (
    f"the progress of all groups is larger than the maximum response of {MAX_FRAME_BYTES} bytes; query each group "
    "separately, as consumerProgress -g does"
)


class OffsetAdmin:
    """Handles requests about consumer offsets (``AdminBrokerProcessor``)."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @answers(
        RequestCode.GET_ALL_CONSUMER_OFFSET, limits=("TABLE_ROWS_PER_SLICE",), permission=needs_cluster(Action.GET)
    )
    def all_offsets(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """Return the table of consumer offsets."""
        return run_in_slices(connection, request, self._all_offsets())

    def _all_offsets(self) -> Steps:
        parts: list[bytes] = []
        for some in self._broker.offsets.copy_in_slices():
            if parts:
                yield
            parts.append(fastjson.dumps(some)[1:-1])
        return Response(body=b'{"offsetTable":{%s}}' % b",".join(filter(None, parts)))

    @answers(
        RequestCode.QUERY_CORRECTION_OFFSET,
        limits=("QUEUES_PER_SLICE",),
        permission=needs_topic(Action.GET)
        & needs_group(Action.GET, field="compare_group")
        & needs_group(Action.GET, field="filter_groups", separator=","),
    )
    def correction(
        self, connection: ServerConnection, request: Request[QueryCorrectionOffsetHeader], _body: bytes
    ) -> Response | None:
        """Return the lowest offset that any group has in each queue of a topic.

        Groups in ``filterGroups`` (separated by commas) are ignored. If ``compareGroup`` is behind that offset in a
        queue, the largest 64-bit number is returned. (Apache's broker also deletes the offsets of the ignored groups.)
        """
        return run_in_slices(connection, request, self._correction(request.header))

    def _correction(self, header: QueryCorrectionOffsetHeader) -> Steps:
        ignored = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        part = Slice()
        for group in self._broker.offsets.groups_of(header.topic) - ignored:
            queues = self._broker.offsets.of_queues(group, header.topic)
            for queue_id, offset in queues.items():
                if offset >= self._broker.store.extent(header.topic, queue_id)[0]:
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
            if part.ends_after(max(len(queues), 1)):  # none if they were deleted meanwhile
                yield
        for queue_id, offset in self._broker.offsets.of_queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = _OVERTAKEN
        answer = QueryCorrectionOffsetBody(correction_offsets=dict(sorted(lowest.items())))
        return Response(body=encode_body(answer))

    @answers(
        RequestCode.CLONE_GROUP_OFFSET,
        limits=("QUEUES_PER_SLICE",),
        permission=needs_group(Action.GET, field="src_group")
        & needs_group(Action.UPDATE, field="dest_group")
        & needs_topic(Action.UPDATE),
    )
    def clone(
        self, connection: ServerConnection, request: Request[CloneGroupOffsetRequestHeader], _body: bytes
    ) -> Response | None:
        """Copy a group's offsets to another group, in one topic or in all topics."""
        header = request.header
        wrong = check_group(header.dest_group)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        _log.info(
            "%s is copying the offsets of %s to %s", connection.remote_address, header.src_group, header.dest_group
        )
        return run_in_slices(connection, request, self._clone(header))

    def _clone(self, header: CloneGroupOffsetRequestHeader) -> Steps:
        found = self._broker.offsets.of_group(header.src_group)
        names = [header.topic] if header.topic else (topic for topic, _ in found)
        online = self._broker.clients.consumers.get(header.src_group)
        part = Slice()
        for topic in names:
            if part.ends_after():
                yield
            if self._broker.topics.get(topic) is None:
                continue
            if not header.offline and online is not None and topic not in online.subscriptions:
                continue
            queues = dict(self._broker.offsets.of_queues(header.src_group, topic))
            for queue_id, offset in queues.items():
                if not self._broker.offsets.commit(header.dest_group, topic, queue_id, offset):
                    return Response(
                        ResponseCode.SYSTEM_ERROR,
                        remark="this broker already has the maximum number of consumer offsets",
                    )
            if part.ends_after(len(queues)):
                yield
        return Response()

    # --- reset --------------------------------------------------------------------------------
    @answers(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        limits=("QUEUES_PER_SLICE",),
        permission=needs_topic(Action.UPDATE) & needs_group(Action.UPDATE, field="group"),
    )
    def reset(
        self, connection: ServerConnection, request: Request[ResetOffsetRequestHeader], _body: bytes
    ) -> Response | None:
        """Compute a group's new offsets and send them to its members (``Broker2Client.resetOffset``).

        The members stop, apply the new offsets and commit them. This request does not change the broker's table.
        """
        header = request.header
        topic = self._broker.topics.get(header.topic)
        if topic is None:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        queues = range(topic.write_queue_nums)
        archived = self._broker.archived
        if archived is None or header.timestamp == LATEST:
            return run_in_slices(connection, request, self._reset(connection.remote_address, header, queues, {}))

        def reset(found: Mapping[int, int] | None) -> None:
            if found is None:
                response: Response | None = Response(ResponseCode.SYSTEM_BUSY, remark=NOT_NOW)
            else:
                response = run_in_slices(
                    connection, request, self._reset(connection.remote_address, header, queues, found)
                )
            if response is not None:
                connection.respond(request, response)

        find_first(archived, self._broker.store, header.topic, queues, header.timestamp, reset)
        return None

    def _reset(self, asker: str, header: ResetOffsetRequestHeader, queues: range, archived: Mapping[int, int]) -> Steps:
        parts: list[bytes] = []
        parts_for_c: list[bytes] = []
        for queue_ids in slices(queues):
            if parts:
                yield
            table: dict[MessageQueue, int] = {}
            for queue_id in queue_ids:
                consumed = self._broker.offsets.query(header.group, header.topic, queue_id)
                if consumed == NO_OFFSET:
                    return Response(ResponseCode.SYSTEM_ERROR, remark=f"THe consumer group <{header.group}> not exist")
                wanted = archived.get(queue_id, -1)
                if wanted < 0:
                    wanted = self._offset_at(header.topic, queue_id, header.timestamp)
                if not header.is_force and wanted > consumed:
                    wanted = consumed
                table[MessageQueue(header.topic, self._broker.config.broker_name, queue_id)] = wanted
            parts.append(members(table))
            parts_for_c.append(members(_for_cpp(table)))
        group = self._broker.clients.consumers.get(header.group)
        if group is None:
            return Response(
                ResponseCode.CONSUMER_NOT_ONLINE,
                remark=f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        channels = list(group.channels.values())
        for channel in channels:
            if channel.version < _OLDEST_RESET_VERSION:
                return Response(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"the client does not support this feature. version={channel.version}",
                )
        body = b'{"offsetTable":{%s}}' % b",".join(parts)
        body_for_c = b'{"offsetTable":[%s]}' % b",".join(parts_for_c)
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        frame = request_command(code, 0, header, body, flag=FLAG_ONEWAY)
        frame_for_c = request_command(code, 0, header, body_for_c, flag=FLAG_ONEWAY)
        for channel in channels:
            if not channel.connection.is_behind:
                channel.connection.write(frame_for_c if channel.language == "CPP" else frame)
        _log.info("%s is resetting the offsets of %s in %s to %d", asker, header.group, header.topic, header.timestamp)
        return Response(remark=DEFAULT_REMARK, body=body)

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._broker.store
        if timestamp == LATEST:
            return store.extent(topic, queue_id)[1]
        return store.first_by_time(topic, queue_id, timestamp)

    # --- progress -----------------------------------------------------------------------------
    @answers(
        RequestCode.GET_CONSUME_STATS,
        limits=("QUEUES_PER_SLICE",),
        permission=needs_group(Action.GET) & needs_topic(Action.GET),
    )
    def of_group(
        self, connection: ServerConnection, request: Request[GetConsumeStatsRequestHeader], _body: bytes
    ) -> Response | None:
        """Return a group's progress, in one topic or in all topics in which it has offsets."""
        return run_in_slices(connection, request, self._of_group(request.header))

    def _of_group(self, header: GetConsumeStatsRequestHeader) -> Steps:
        group = header.consumer_group
        consume_tps = 0.0
        topics: list[TopicConfig] = []
        for some in slices(consumed_topics(self._broker, group, header.topic)):
            if topics:
                yield
            for topic, _ in some:
                topics.append(topic)
                consume_tps += self._broker.stats.per_minute(GROUP_GET_NUMS, f"{topic.topic_name}@{group}").tps
        parts: list[bytes] = []
        wanted = ((topic.topic_name, queue_id) for topic in topics for queue_id in range(topic.read_queue_nums))
        for queues in slices(wanted):
            if parts:
                yield
            parts.append(members({self._queue(name, at): self._offset(group, name, at) for name, at in queues}))
        body = b'{"consumeTps":%s,"offsetTable":{%s}}' % (encode_body(consume_tps), b",".join(parts))
        return Response(body=body)

    @answers(
        RequestCode.GET_BROKER_CONSUME_STATS,
        limits=("QUEUES_PER_SLICE", "MAX_FRAME_BYTES"),
        permission=needs_cluster(Action.GET),
    )
    def of_all_groups(
        self, connection: ServerConnection, request: Request[GetConsumeStatsInBrokerHeader], _body: bytes
    ) -> Response | None:
        """Return the progress of every group on this broker, topic by topic."""
        return run_in_slices(connection, request, self._of_all_groups(request.header.is_order))

    def _has_too_many_queues(self, is_order: bool) -> Generator[None, None, bool]:
        """Return whether the groups have too many queues for one response."""
        room = MAX_FRAME_BYTES // _LEAST_QUEUE_BYTES
        part = Slice()
        for group in list(self._broker.groups.table):
            for topic, _ in consumed_topics(self._broker, group):
                if topic.order or not is_order:
                    room -= topic.write_queue_nums
                    if room < 0:
                        return True
                if part.ends_after():
                    yield
        return False

    def _of_all_groups(self, is_order: bool) -> Steps:
        if (yield from self._has_too_many_queues(is_order)):
            return Response(ResponseCode.SYSTEM_ERROR, remark=_TOO_LARGE)
        listed: list[bytes] = []
        total_diff = size = 0
        part = Slice()
        for group in list(self._broker.groups.table):
            progress: list[bytes] = []
            for topic, _ in consumed_topics(self._broker, group):
                if part.ends_after():
                    yield
                if is_order and not topic.order:
                    continue
                name = topic.topic_name
                parts: list[bytes] = []
                for queue_ids in slices(range(topic.write_queue_nums)):
                    table = {self._queue(name, at): self._offset(group, name, at) for at in queue_ids}
                    total_diff += sum(queue.broker_offset - queue.consumer_offset for queue in table.values())
                    parts.append(members(table))
                    if part.ends_after(len(queue_ids)):
                        yield
                tps = self._broker.stats.per_minute(GROUP_GET_NUMS, f"{name}@{group}").tps
                progress.append(b'{"consumeTps":%s,"offsetTable":{%s}}' % (encode_body(tps), b",".join(parts)))
                size += len(progress[-1])
                if size > MAX_FRAME_BYTES:
                    return Response(ResponseCode.SYSTEM_ERROR, remark=_TOO_LARGE)
            listed.append(b"{%s:[%s]}" % (encode_body(group), b",".join(progress)))
            if part.ends_after():
                yield
        return Response(
            body=b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d}'
            % (encode_body(self._broker.address), b",".join(listed), total_diff)
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.config.broker_name, queue_id)

    def _offset(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._broker.store
        consumed = max(self._broker.offsets.query(group, topic, queue_id), 0)
        last = store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
        in_flight = self._broker.offsets.in_flight(topic, group, queue_id)
        return OffsetWrapper(
            broker_offset=store.extent(topic, queue_id)[1],
            consumer_offset=consumed,
            last_timestamp=max(last, 0),
            pull_offset=consumed + in_flight if in_flight else UNSET,
            visible_again=self._broker.offsets.visible_again(topic, group, queue_id) if in_flight else UNSET,
        )

    @answers(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        limits=("QUEUES_PER_SLICE",),
        permission=needs_topic(Action.GET) & needs_group(Action.GET, field="group"),
    )
    def in_time(
        self, connection: ServerConnection, request: Request[QueryConsumeTimeSpanRequestHeader], _body: bytes
    ) -> Response | None:
        """Return the store times of the first, the last, and the last consumed message in each queue.

        ``delayTime`` is the age of the next message to consume in milliseconds, or 0 if all messages have been
        consumed.
        """
        name, group = request.header.topic, request.header.group
        topic = self._broker.topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        return run_in_slices(connection, request, self._in_time(name, group, topic.write_queue_nums))

    def _in_time(self, name: str, group: str, queue_nums: int) -> Steps:
        parts: list[bytes] = []
        for queue_ids in slices(range(queue_nums)):
            if parts:
                yield
            parts.append(members([self._read_times(name, group, queue_id) for queue_id in queue_ids]))
        return Response(body=b'{"consumeTimeSpanSet":[%s]}' % b",".join(parts))

    def _read_times(self, name: str, group: str, queue_id: int) -> QueueTimeSpan:
        begin, end = self._broker.store.extent(name, queue_id)

        def stored_at(offset: int) -> int:
            return self._broker.store.store_time(name, queue_id, offset) if begin <= offset < end else -1

        consumed = max(self._broker.offsets.query(group, name, queue_id), begin)
        earliest = stored_at(begin)
        consumed_at = stored_at(consumed - 1) if consumed > begin else earliest
        latest = stored_at(end - 1)
        return QueueTimeSpan(
            message_queue=self._queue(name, queue_id),
            min_time_stamp=earliest,
            max_time_stamp=latest,
            consume_time_stamp=consumed_at,
            delay_time=self._broker.clock.now_ms() - stored_at(consumed) if consumed < end else 0,
            min_time_stamp_str=_local_text(earliest),
            max_time_stamp_str=_local_text(latest),
            consume_time_stamp_str=_local_text(consumed_at),
        )


def consumed_topics(
    broker: BrokerContext, group: str, topic: str | None = None
) -> Iterator[tuple[TopicConfig, QueueOffsets]]:
    """Yield the topics in which a group has offsets, with these offsets.

    If ``topic`` is not empty, yield only this topic. If the group has members, skip topics to which they do not
    subscribe.
    """
    online = broker.clients.consumers.get(group)
    found = [(topic, broker.offsets.of_queues(group, topic))] if topic else broker.offsets.of_group(group)
    for name, offsets in found:
        config = broker.topics.get(name)
        if config is not None and (online is None or not online.subscriptions or name in online.subscriptions):
            yield config, offsets


def _for_cpp(table: dict[MessageQueue, int]) -> list[MessageQueueForC]:
    return [
        MessageQueueForC(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
        for queue, offset in table.items()
    ]


def _local_text(timestamp_ms: int) -> str:
    """Format a local time like ``UtilAll.formatDate``, for example ``2026-11-21#03:49:47:528``."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{milliseconds:03d}"
