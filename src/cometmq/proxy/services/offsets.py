"""The methods PullMessage, UpdateOffset, GetOffset and QueryOffset, for clients that manage offsets themselves."""

from __future__ import annotations

from typing import Final

from cometmq.message.message import split_records
from cometmq.proxy.backend.backend import ASK_SECONDS
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, ms_of, topic_of
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.limits import LARGE_ANSWER_BYTES
from cometmq.proxy.message_bytes import to_proto
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, FilterType, QueryOffsetPolicy
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    LOWER,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.permissions import Action, on_group, on_topic

_SUSPEND: Final = 0x2
_SUBSCRIPTION: Final = 0x4
"""The bits of ``PullSysFlag``."""
_NO_MESSAGES: Final = {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}


class OffsetService:
    """Methods that read messages at offsets, and read and update offsets."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    async def pull_message(self, call: Call, request: v2.PullMessageRequest) -> None:
        """Send the status, the messages at an offset, and the next offset."""
        try:
            messages, following = await self._pull(call, request)
        except ProxyError as error:
            call.send(v2.PullMessageResponse(status=error.status))
            return
        status = OK if messages else v2.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
        call.send(v2.PullMessageResponse(status=status))
        for message in messages:
            call.send(v2.PullMessageResponse(message=message))
        call.send(v2.PullMessageResponse(next_offset=following))

    async def _pull(self, call: Call, request: v2.PullMessageRequest) -> tuple[list[v2.Message], int]:
        config = self._context.config
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        if request.offset < 0:
            raise ProxyError(Code.ILLEGAL_OFFSET, f"the offset {request.offset} is negative")
        wait_ms = min(max(ms_of(request.long_polling_timeout), 0), config.long_polling_max_ms)
        is_sql = request.filter_expression.type == FilterType.SQL
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=request.message_queue.id,
            queue_offset=request.offset,
            max_msg_nums=min(max(request.batch_size, 1), config.long_polling_batch),
            sys_flag=_SUBSCRIPTION | (_SUSPEND if wait_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=wait_ms,
            sub_version=self._context.clock.now_ms(),
            subscription=request.filter_expression.expression or "*",
            expression_type="SQL92" if is_sql else "TAG",
        )
        broker = request.message_queue.broker.name
        reply = await session.link.ask(broker, RequestCode.PULL_MESSAGE, header, timeout_s=wait_ms / 1000 + ASK_SECONDS)
        await call.wait_for_time(len(reply.body), LARGE_ANSWER_BYTES)
        if reply.code in _NO_MESSAGES:
            return [], reply.header(PullMessageResponseHeader).next_begin_offset
        if reply.code:
            raise refused(reply.code, reply.remark)
        messages = [to_proto(message, topic=topic) for message in split_records(bytes(reply.body), broker)]
        return messages, reply.header(PullMessageResponseHeader).next_begin_offset

    async def update_offset(self, call: Call, request: v2.UpdateOffsetRequest) -> v2.UpdateOffsetResponse:
        """Update a group's offset."""
        queue = request.message_queue
        topic, group = topic_of(queue.topic), group_of(request.group)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        if request.offset < 0:
            raise ProxyError(Code.ILLEGAL_OFFSET, f"the offset {request.offset} is negative")
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue.id, commit_offset=request.offset
        )
        (await session.link.ask(queue.broker.name, RequestCode.UPDATE_CONSUMER_OFFSET, header)).checked()
        return v2.UpdateOffsetResponse(status=OK)

    async def get_offset(self, call: Call, request: v2.GetOffsetRequest) -> v2.GetOffsetResponse:
        """Return a group's offset."""
        queue = request.message_queue
        topic, group = topic_of(queue.topic), group_of(request.group)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue.id, set_zero_if_not_found=False
        )
        reply = await session.link.ask(queue.broker.name, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            raise ProxyError(Code.OFFSET_NOT_FOUND, reply.remark or "the group has no offset in this queue")
        offset = reply.checked().header(QueryConsumerOffsetResponseHeader).offset
        return v2.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(self, call: Call, request: v2.QueryOffsetRequest) -> v2.QueryOffsetResponse:
        """Return a queue's first or last offset, or the offset of the first message stored at or after a time."""
        queue = request.message_queue
        topic = topic_of(queue.topic)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB)])
        ask = session.link.ask
        policy = request.query_offset_policy
        if policy == QueryOffsetPolicy.TIMESTAMP:
            time = ms_of(request.timestamp)
            search = SearchOffsetRequestHeader(topic=topic, queue_id=queue.id, timestamp=time, boundary_type=LOWER)
            reply = await ask(queue.broker.name, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
            offset = reply.checked().header(SearchOffsetResponseHeader).offset
        elif policy == QueryOffsetPolicy.END:
            last = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue.id)
            reply = await ask(queue.broker.name, RequestCode.GET_MAX_OFFSET, last)
            offset = reply.checked().header(GetMaxOffsetResponseHeader).offset
        else:
            first = GetMinOffsetRequestHeader(topic=topic, queue_id=queue.id)
            reply = await ask(queue.broker.name, RequestCode.GET_MIN_OFFSET, first)
            offset = reply.checked().header(GetMinOffsetResponseHeader).offset
        return v2.QueryOffsetResponse(status=OK, offset=offset)
