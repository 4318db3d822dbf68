"""The method ForwardMessageToDeadLetterQueue (``ForwardMessageToDLQActivity``)."""

from __future__ import annotations

from cometmq.message.message import MessageExt, split_records
from cometmq.message.properties import LITE_TOPIC
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import Link
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, topic_of
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.receipts import Delivery, forward_to_dead_letters, parse_delivery
from cometmq.proxy.received import lite_offset
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ViewMessageRequestHeader
from cometmq.remoting.permissions import Action, on_group, on_topic


class DeadLetterService:
    """Moves messages to their group's dead-letter topic."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals

    async def forward_message(
        self, call: Call, request: v2.ForwardMessageToDeadLetterQueueRequest
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        """Store the message as a dead letter, then acknowledge it."""
        context = self._context
        topic, group = topic_of(request.topic), group_of(request.group)
        session = context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        text = request.receipt_handle
        delivery = self._renewals.find(session, topic, group, text)
        if delivery is None:
            lite = request.lite_topic or None
            delivery = parse_delivery(topic, group, text, now_ms=context.clock.now_ms(), lite_topic=lite)
            await _check_log_offset(session.link, delivery)
        await forward_to_dead_letters(session.link, delivery, request.message_id)
        self._renewals.remove(session, group, text)
        return v2.ForwardMessageToDeadLetterQueueResponse(status=OK)


async def _check_log_offset(link: Link, delivery: Delivery) -> None:
    """Check that the log offset in a client's handle belongs to the handle's message.

    :raises ProxyError: the offset belongs to another message, or the broker refuses.
    """
    handle = delivery.handle
    header = ViewMessageRequestHeader(offset=delivery.log_offset)
    reply = await link.ask(handle.broker_name, RequestCode.VIEW_MESSAGE_BY_ID, header)
    if reply.code == ResponseCode.SYSTEM_BUSY:
        raise refused(reply.code, reply.remark)
    try:
        messages = [] if reply.code else split_records(bytes(reply.body))
        positions = [_position(message, delivery.lite_topic) for message in messages]
    except (RecordError, ValueError):
        positions = []
    if positions != [(delivery.stored_topic, handle.queue_id, handle.queue_offset)]:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is invalid: its log offset is wrong")


def _position(message: MessageExt, lite_topic: str | None) -> tuple[str, int, int]:
    """Return a message's topic, queue and offset, or its offset in the lite topic to which it belongs."""
    if lite_topic is None:
        return message.stored_topic, message.queue_id, message.queue_offset
    is_of_lite_topic = message.properties.get(LITE_TOPIC) == lite_topic
    return message.stored_topic, 0, lite_offset(message) if is_of_lite_topic else -1
