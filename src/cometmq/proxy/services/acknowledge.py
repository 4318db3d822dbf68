"""AckMessage and ChangeInvisibleDuration (``AckMessageActivity``, ``ChangeInvisibleDurationActivity``)."""

from __future__ import annotations

import asyncio

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import MAX_ACK_ENTRIES
from cometmq.proxy.names import group_of, topic_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.receipts import live_receipt
from cometmq.proxy.renewals import Renewals, change_time
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.dead_letters import acknowledge
from cometmq.proxy.sessions import ClientSession
from cometmq.proxy.times import ms_of
from cometmq.remoting.permissions import Action, on_group, on_topic


class AcknowledgeService:
    """Ends, or changes, the time of messages that were received."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals

    async def ack_message(self, call: Call, request: v2.AckMessageRequest) -> v2.AckMessageResponse:
        """Acknowledge messages; each has its own status."""
        topic, group = topic_of(request.topic), group_of(request.group)
        self._context.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        if not len(request.entries):
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(request.entries) > MAX_ACK_ENTRIES:
            raise ProxyError(Code.BAD_REQUEST, f"more than {MAX_ACK_ENTRIES} messages in one request")
        if len(request.entries) == 1:
            entries = [await self._ack(call.session, group, topic, request.entries[0])]
        else:
            entries = await asyncio.gather(*(self._ack(call.session, group, topic, entry) for entry in request.entries))
        first = entries[0].status
        if all(entry.status.code == first.code for entry in entries):
            status = v2.Status(code=first.code, message=Code(first.code).name)
        else:
            status = v2.Status(code=Code.MULTIPLE_RESULTS, message="Multiple result")
        return v2.AckMessageResponse(status=status, entries=entries)

    async def _ack(
        self, session: ClientSession, group: str, topic: str, entry: v2.AckMessageEntry
    ) -> v2.AckMessageResultEntry:
        text = entry.receipt_handle
        try:
            receipt = self._renewals.current(session, group, text) or live_receipt(text, self._context.clock.now_ms())
            await acknowledge(session.link, group, topic, receipt)
            self._renewals.release(session, group, text)
            status = OK
        except ProxyError as error:
            status = error.status
        return v2.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=text, status=status)

    async def change_invisible_duration(
        self, call: Call, request: v2.ChangeInvisibleDurationRequest
    ) -> v2.ChangeInvisibleDurationResponse:
        """Set when a message is visible again; its handle is another one from then on."""
        context = self._context
        topic, group = topic_of(request.topic), group_of(request.group)
        context.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        session: ClientSession = call.session
        invisible_ms = ms_of(request.invisible_duration)
        if invisible_ms > context.config.invisible_max_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is too large. max is {context.config.invisible_max_ms}",
            )
        if invisible_ms < 0:
            raise ProxyError(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 0")
        text = request.receipt_handle
        receipt = self._renewals.current(session, group, text) or live_receipt(text, context.clock.now_ms())
        changed = await change_time(session.link, group, topic, receipt, invisible_ms)
        self._renewals.release(session, group, text)
        return v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())
