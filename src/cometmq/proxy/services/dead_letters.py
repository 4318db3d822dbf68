"""ForwardMessageToDeadLetterQueue (``ForwardMessageToDLQActivity``)."""

from __future__ import annotations

from cometmq.message.message import split_records
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import Link
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.names import group_of, topic_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.receipts import Receipt, live_receipt
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader, ViewMessageRequestHeader
from cometmq.remoting.permissions import Action, on_group, on_topic
from cometmq.remoting.pop_headers import AckMessageRequestHeader

_TO_DEAD_LETTERS = -1
"""The delay level that says so."""


class DeadLetterService:
    """Moves messages to the dead letters of their group."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals

    async def forward_message(
        self, call: Call, request: v2.ForwardMessageToDeadLetterQueueRequest
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        """Store the message as a dead letter, then acknowledge it."""
        context = self._context
        topic, group = topic_of(request.topic), group_of(request.group)
        context.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        session: ClientSession = call.session
        text = request.receipt_handle
        receipt = self._renewals.current(session, group, text)
        if receipt is None:
            receipt = live_receipt(text, context.clock.now_ms())
            await _check_place(session.link, receipt, receipt.popped_from(topic, group))
        await forward(session.link, group, topic, receipt, request.message_id)
        self._renewals.release(session, group, text)
        return v2.ForwardMessageToDeadLetterQueueResponse(status=OK)


async def _check_place(link: Link, receipt: Receipt, topic: str) -> None:
    """Check that the handle of a client names one message: by its log offset alone it could take any one of the broker.

    :raises ProxyError: it names two, or the broker refuses.
    """
    handle = receipt.handle
    header = ViewMessageRequestHeader(offset=receipt.log_offset)
    reply = await link.ask(handle.broker_name, RequestCode.VIEW_MESSAGE_BY_ID, header)
    if reply.code == ResponseCode.SYSTEM_BUSY:
        raise refused(reply.code, reply.remark)
    try:
        found = [] if reply.code else split_records(bytes(reply.body))
        places = [(message.stored_topic, message.queue_id, message.queue_offset) for message in found]
    except RecordError:
        places = []
    if places != [(topic, handle.queue_id, handle.queue_offset)]:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is invalid: no such message is there")


async def forward(link: Link, group: str, topic: str, receipt: Receipt, message_id: str) -> None:
    """Store a message as a dead letter, then acknowledge it: a crash between leaves it there twice, never lost.

    :raises ProxyError: the broker refuses.
    """
    back = ConsumerSendMsgBackRequestHeader(
        offset=receipt.log_offset,
        group=group,
        delay_level=_TO_DEAD_LETTERS,
        origin_msg_id=message_id,
        origin_topic=receipt.popped_from(topic, group),
        max_reconsume_times=0,
    )
    (await link.ask(receipt.handle.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, back)).checked()
    await acknowledge(link, group, topic, receipt)


async def acknowledge(link: Link, group: str, topic: str, receipt: Receipt) -> None:
    """Acknowledge a message.

    :raises ProxyError: the broker refuses.
    """
    handle = receipt.handle
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=receipt.popped_from(topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
    )
    (await link.ask(handle.broker_name, RequestCode.ACK_MESSAGE, header)).checked()
