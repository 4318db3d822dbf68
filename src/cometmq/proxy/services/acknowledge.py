"""AckMessage and ChangeInvisibleDuration (``AckMessageActivity``, ``ChangeInvisibleDurationActivity``)."""

from __future__ import annotations

import asyncio

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, ms_of, topic_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import MAX_ACK_ENTRIES
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.receipts import Delivery, acknowledge, change_invisible_time, parse_delivery
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.permissions import Action, on_group, on_topic


class AcknowledgeService:
    """Methods that end or change the invisible time of received messages."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals

    async def ack_message(self, call: Call, request: v2.AckMessageRequest) -> v2.AckMessageResponse:
        """Acknowledge messages; the response contains a status for each message."""
        topic, group = topic_of(request.topic), group_of(request.group)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        if not len(request.entries):
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(request.entries) > MAX_ACK_ENTRIES:
            raise ProxyError(Code.BAD_REQUEST, f"the request acknowledges more than {MAX_ACK_ENTRIES} messages")
        if len(request.entries) == 1:
            entries = [await self._acknowledge(session, topic, group, request.entries[0])]
        else:
            entries = await asyncio.gather(
                *(self._acknowledge(session, topic, group, entry) for entry in request.entries)
            )
        first = entries[0].status
        if all(entry.status.code == first.code for entry in entries):
            status = v2.Status(code=first.code, message=Code(first.code).name)
        else:
            status = v2.Status(code=Code.MULTIPLE_RESULTS, message="Multiple result")
        return v2.AckMessageResponse(status=status, entries=entries)

    async def _acknowledge(
        self, session: ClientSession, topic: str, group: str, entry: v2.AckMessageEntry
    ) -> v2.AckMessageResultEntry:
        text = entry.receipt_handle
        try:
            await acknowledge(session.link, self._delivery(session, topic, group, text))
            self._renewals.remove(session, group, text)
            status = OK
        except ProxyError as error:
            status = error.status
        return v2.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=text, status=status)

    def _delivery(self, session: ClientSession, topic: str, group: str, text: str) -> Delivery:
        """Return the delivery for a receipt handle, or the current delivery if the message is being renewed.

        :raises ProxyError: the handle is malformed or expired.
        """
        renewed = self._renewals.find(session, topic, group, text)
        return renewed or parse_delivery(topic, group, text, now_ms=self._context.clock.now_ms())

    async def change_invisible_duration(
        self, call: Call, request: v2.ChangeInvisibleDurationRequest
    ) -> v2.ChangeInvisibleDurationResponse:
        """Set the time at which a message becomes visible again; the client must then use the new handle."""
        config = self._context.config
        topic, group = topic_of(request.topic), group_of(request.group)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        invisible_ms = ms_of(request.invisible_duration)
        if invisible_ms > config.invisible_max_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {config.invisible_max_ms}"
            )
        if invisible_ms < 0:
            raise ProxyError(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 0")
        text = request.receipt_handle
        delivery = self._delivery(session, topic, group, text)
        changed = await change_invisible_time(session.link, delivery, invisible_ms)
        self._renewals.remove(session, group, text)
        return v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())
