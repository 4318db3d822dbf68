"""Consumer offsets for administrators: read all (43), compare (308), clone (314), reset (222), ask the clients (223).

(``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from cometmq import fastjson
from cometmq.broker.admin_relay import BUSY
from cometmq.broker.admin_topics import DEFAULT_REMARK
from cometmq.broker.clients import ClientChannel, ConsumerManager
from cometmq.broker.in_flight import InFlight
from cometmq.broker.offsets import NO_OFFSET, ConsumerOffsetManager
from cometmq.broker.slices import Steps, members, run_in_slices, slices
from cometmq.broker.topics import TopicConfigManager
from cometmq.limits import (
    MAX_CONSUMER_STATUS_BYTES,
    MAX_RELAYED_BYTES,
    MAX_RELAYED_REQUESTS,
    MAX_STATUS_ANSWERS_BYTES,
)
from cometmq.message.names import check_group
from cometmq.remoting.bodies import (
    BodyError,
    GetConsumerStatusBody,
    MessageQueue,
    MessageQueueForC,
    QueryCorrectionOffsetBody,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, request_command
from cometmq.remoting.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    NoHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
    to_ext,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import InvokeError, ServerConnection
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

LATEST: Final = -1
"""The timestamp that stands for the end of each queue."""
_OLDEST_RESET_VERSION: Final = 28
"""V3_0_7_SNAPSHOT: clients from here on understand RESET_CONSUMER_CLIENT_OFFSET."""
_STATUS_TIMEOUT_S: Final = 5.0
_OVERTAKEN: Final = 2**63 - 1


class OffsetAdmin:
    """Answers administrators about consumer offsets."""

    def __init__(
        self,
        broker_name: str,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        store: MessageStore,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._asking: set[asyncio.Task[None]] = set()
        self._in_flight = InFlight(MAX_RELAYED_REQUESTS, MAX_RELAYED_BYTES)
        self._kept = InFlight(MAX_RELAYED_REQUESTS, MAX_STATUS_ANSWERS_BYTES)

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about consumer offsets."""
        code = RequestCode
        processors.register(code.GET_ALL_CONSUMER_OFFSET, NoHeader, self.all_offsets)
        processors.register(code.QUERY_CORRECTION_OFFSET, QueryCorrectionOffsetHeader, self.correction)
        processors.register(code.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader, self.clone)
        processors.register(code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader, self.reset)
        processors.register(
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatusRequestHeader, self.consumer_status
        )

    def all_offsets(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """GET_ALL_CONSUMER_OFFSET (43)."""
        return run_in_slices(connection, request, self._all_offsets())

    def _all_offsets(self) -> Steps:
        parts: list[bytes] = []
        for some in self._offsets.copy_in_slices():
            if parts:
                yield
            parts.append(fastjson.dumps(some)[1:-1])
        return Response(body=b'{"offsetTable":{%s}}' % b",".join(parts))

    def correction(
        self, _connection: ServerConnection, request: Request[QueryCorrectionOffsetHeader], _body: bytes
    ) -> Response:
        """QUERY_CORRECTION_OFFSET (308): the lowest offset of any group in each queue of a topic.

        Groups in ``filterGroups`` (joined by commas) do not count. A queue where ``compareGroup`` is
        behind that offset gets the largest number there is. (Apache also deletes the offsets of the
        groups that do not count; they are kept here.)
        """
        header = request.header
        ignored = set((header.filter_groups or "").split(","))
        queues = self._store.queues().get(header.topic, {})
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic) - ignored:
            for queue_id, offset in self._offsets.of_queues(group, header.topic).items():
                queue = queues.get(queue_id)
                if offset >= (0 if queue is None else queue.min_offset()):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.of_queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = _OVERTAKEN
        answer = QueryCorrectionOffsetBody(correction_offsets=dict(sorted(lowest.items())))
        return Response(body=encode_body(answer))

    def clone(
        self, connection: ServerConnection, request: Request[CloneGroupOffsetRequestHeader], _body: bytes
    ) -> Response:
        """CLONE_GROUP_OFFSET (314): give one group the offsets of another, in one topic or in all."""
        header = request.header
        wrong = check_group(header.dest_group)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        names = [header.topic] if header.topic else [topic for topic, _ in self._offsets.of_group(header.src_group)]
        online = self._consumers.get(header.src_group)
        for topic in names:
            if self._topics.get(topic) is None:
                continue
            if not header.offline and online is not None and topic not in online.subscriptions:
                continue
            for queue_id, offset in dict(self._offsets.of_queues(header.src_group, topic)).items():
                if not self._offsets.commit(header.dest_group, topic, queue_id, offset):
                    return Response(
                        ResponseCode.SYSTEM_ERROR, remark="this broker holds too many consumer offsets already"
                    )
        _log.info("%s clones offsets of %s to %s", connection.remote_address, header.src_group, header.dest_group)
        return Response()

    # --- reset --------------------------------------------------------------------------------
    def reset(
        self, connection: ServerConnection, request: Request[ResetOffsetRequestHeader], _body: bytes
    ) -> Response | None:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): compute new offsets and tell the members of the group.

        The members stop, take the new offsets and commit them; the broker's table is not touched here.
        """
        header = request.header
        topic = self._topics.get(header.topic)
        if topic is None:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        return run_in_slices(
            connection, request, self._reset(connection.remote_address, header, topic.write_queue_nums)
        )

    def _reset(self, asker: str, header: ResetOffsetRequestHeader, queue_nums: int) -> Steps:
        parts: list[bytes] = []
        parts_for_c: list[bytes] = []
        for queue_ids in slices(range(queue_nums)):
            if parts:
                yield
            table: dict[MessageQueue, int] = {}
            for queue_id in queue_ids:
                consumed = self._offsets.query(header.group, header.topic, queue_id)
                if consumed == NO_OFFSET:
                    return Response(ResponseCode.SYSTEM_ERROR, remark=f"THe consumer group <{header.group}> not exist")
                wanted = self._offset_at(header.topic, queue_id, header.timestamp)
                if not header.is_force and wanted > consumed:
                    wanted = consumed
                table[MessageQueue(header.topic, self._broker_name, queue_id)] = wanted
            parts.append(members(table))
            parts_for_c.append(members(_for_c(table)))
        group = self._consumers.get(header.group)
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
        _log.info("%s resets offsets of %s in %s to %d", asker, header.group, header.topic, header.timestamp)
        return Response(remark=DEFAULT_REMARK, body=body)

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        queue = self._store.queues().get(topic, {}).get(queue_id)
        if queue is None:
            return 0
        if timestamp == LATEST:
            return max(queue.max_offset(), 0)
        return max(self._store.offset_by_time(topic, queue_id, timestamp), 0)

    # --- what clients hold --------------------------------------------------------------------
    def consumer_status(
        self, connection: ServerConnection, request: Request[GetConsumerStatusRequestHeader], _body: bytes
    ) -> Response | None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): the offsets that the members themselves hold.

        ``clientAddr`` is the client id of the one to ask; all are asked when it is empty.
        """
        header = request.header
        group = self._consumers.get(header.group)
        if group is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the consumer group[{header.group}] not online")
        asked = [
            channel
            for channel in group.channels.values()
            if not header.client_addr or header.client_addr == channel.client_id
        ]
        texts = sum(map(len, to_ext(header).values()))
        if not self._in_flight.enter(len(asked) + 1, texts):
            return Response(ResponseCode.SYSTEM_BUSY, remark=BUSY)
        task = asyncio.ensure_future(self._collect_status(connection, request, asked))
        self._asking.add(task)
        task.add_done_callback(partial(self._asked, len(asked) + 1, texts))
        return None

    def _asked(self, count: int, texts: int, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._in_flight.leave(count, texts)

    async def _status(self, channel: ClientChannel, header: GetConsumerStatusRequestHeader, kept: list[int]) -> bytes:
        """The body of one client's answer, counted into what is ``kept``.

        :raises InvokeError: it does not answer, or too much is kept already.
        """
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await channel.connection.invoke(code, header, timeout_s=_STATUS_TIMEOUT_S)
        size = len(answer.body)
        if size > MAX_CONSUMER_STATUS_BYTES or not self._kept.enter(1, size):
            raise InvokeError(f"an answer of {size} bytes is more than can be kept")
        kept.append(size)
        return answer.body

    async def _collect_status(
        self,
        connection: ServerConnection,
        request: Request[GetConsumerStatusRequestHeader],
        asked: list[ClientChannel],
    ) -> None:
        header = GetConsumerStatusRequestHeader(topic=request.header.topic, group=request.header.group)
        kept: list[int] = []
        try:
            answers = await asyncio.gather(
                *(self._status(channel, header, kept) for channel in asked), return_exceptions=True
            )
            body = await self._merged(asked, answers)
        finally:
            self._kept.leave(len(kept), sum(kept))
        connection.respond(request, Response(remark=DEFAULT_REMARK, body=body))

    async def _merged(self, asked: list[ClientChannel], answers: list[bytes | BaseException]) -> bytes:
        """The answers of all clients as one; those that cannot be read are left out."""
        table: dict[str, dict[MessageQueue, int]] = {}
        for channel, answer in zip(asked, answers, strict=True):
            if isinstance(answer, InvokeError):
                _log.warning("no status from %s: %s", channel.client_id, answer)
                continue
            if isinstance(answer, BaseException):
                raise answer
            try:
                status = await asyncio.to_thread(_status_of, answer)
            except BodyError as error:
                _log.warning("no status from %s: %s", channel.client_id, error)
                continue
            if status.message_queue_table:
                table[channel.client_id] = status.message_queue_table
        whole = GetConsumerStatusBody(message_queue_table={}, consumer_table=table)
        return await asyncio.to_thread(encode_body, whole)


def _for_c(table: dict[MessageQueue, int]) -> list[MessageQueueForC]:
    return [
        MessageQueueForC(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
        for queue, offset in table.items()
    ]


def _status_of(body: bytes) -> GetConsumerStatusBody:
    """What a client says that it holds: in fastjson's dialect, which takes long to read.

    :raises BodyError: it is not of that form, or too long.
    """
    if len(body) > MAX_CONSUMER_STATUS_BYTES:
        raise BodyError(f"{len(body)} bytes; at most {MAX_CONSUMER_STATUS_BYTES} are read")
    return decode_body(GetConsumerStatusBody, body or b"{}")
