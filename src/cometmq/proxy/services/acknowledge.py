"""AckMessage and ChangeInvisibleDuration (``AckMessageActivity``, ``ChangeInvisibleDurationActivity``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cometmq.proxy.backend.backend import PoppedHandle
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, ms_of, topic_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import MAX_ACK_ENTRIES
from cometmq.proxy.message_bytes import field, optional
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.receipts import Delivery, acknowledge, change_invisible_time, parse_delivery, popped_of
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession, consumer_needs

_STATUS_OK: Final = OK.SerializeToString()
_ALL_OK: Final = field(b"\x0a", _STATUS_OK)
_REQUESTS_AT_ONCE: Final = 32
"""Number of acknowledgements of one call that the broker handles at the same time; usual calls have no more."""
_ENTRY_BYTES: Final = 500
"""Memory used by a message to acknowledge."""


class AcknowledgeService:
    """Methods that end or change the invisible time of received messages."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals

    def ack_message(self, call: Call, request: v2.AckMessageRequest) -> None:
        """Acknowledge messages; the response contains a status for each message."""
        topic, group = topic_of(request.topic), group_of(request.group)
        session = self._context.sessions.admit(call, consumer_needs(topic, group))
        entries = request.entries
        if not len(entries):
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(entries) > MAX_ACK_ENTRIES:
            raise ProxyError(Code.BAD_REQUEST, f"the request acknowledges more than {MAX_ACK_ENTRIES} messages")
        now_ms = self._context.clock.now_ms()
        renewals = self._renewals
        acks = _Acks(call, [(entry.message_id, entry.receipt_handle) for entry in entries], renewals, session, group)
        if any(entry.lite_topic for entry in entries):
            acks.places.extend(range(len(entries)))
            lites = [entry.lite_topic or None for entry in entries]
            call.start_task(self._request_each(call, session, acks, topic, range(len(entries)), lites))
            return
        popped: list[PoppedHandle] = []
        for place, (_, text) in enumerate(acks.entries):
            try:
                renewed = renewals.find(session, topic, group, text) if renewals else None
                popped.append(popped_of(topic, group, text, now_ms=now_ms) if renewed is None else renewed.popped)
                acks.places.append(place)
            except ProxyError as error:
                acks.end((place,), error)
        others = session.link.acknowledge(popped, acks.acknowledged) if popped else ()
        if others:
            call.start_task(self._request_each(call, session, acks, topic, others))
        elif not call.is_done:
            self._context.backend.accept_acks(call.peer, session, renewals)

    async def _request_each(
        self,
        call: Call,
        session: ClientSession,
        acks: _Acks,
        topic: str,
        positions: Sequence[int],
        lites: Sequence[str | None] | None = None,
    ) -> None:
        """Acknowledge messages with a request for each, some at a time, so that other calls get their share.

        If there are many, each piece counts as a large one: it does not delay the calls that have not begun.

        :param lites: the lite topic of each message; ``None`` if there are none.
        """

        async def one(position: int) -> None:
            error: ProxyError | None = None
            try:
                place = acks.places[position]
                lite = None if lites is None else lites[place]
                delivery = self._delivery(session, topic, acks.group, acks.entries[place][1], lite)
                await acknowledge(session.link, delivery)
            except ProxyError as found:
                error = found
            acks.acknowledged((position,), error)

        if len(positions) == 1:
            await one(positions[0])
            return
        size = len(positions) * _ENTRY_BYTES if len(positions) > _REQUESTS_AT_ONCE else 0
        for first in range(0, len(positions), _REQUESTS_AT_ONCE):
            await call.wait_for_time(size, 0)
            await asyncio.gather(*(one(position) for position in positions[first : first + _REQUESTS_AT_ONCE]))

    def _delivery(self, session: ClientSession, topic: str, group: str, text: str, lite: str | None = None) -> Delivery:
        """Return the delivery for a receipt handle, or the current delivery if the message is being renewed.

        :raises ProxyError: the handle is malformed or expired.
        """
        renewed = self._renewals.find(session, topic, group, text)
        return renewed or parse_delivery(topic, group, text, now_ms=self._context.clock.now_ms(), lite_topic=lite)

    async def change_invisible_duration(
        self, call: Call, request: v2.ChangeInvisibleDurationRequest
    ) -> v2.ChangeInvisibleDurationResponse:
        """Set the time at which a message becomes visible again; the client must then use the new handle."""
        config = self._context.config
        topic, group = topic_of(request.topic), group_of(request.group)
        session = self._context.sessions.admit(call, consumer_needs(topic, group))
        invisible_ms = ms_of(request.invisible_duration)
        if invisible_ms > config.invisible_max_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {config.invisible_max_ms}"
            )
        if invisible_ms < 0:
            raise ProxyError(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 0")
        text = request.receipt_handle
        delivery = self._delivery(session, topic, group, text, request.lite_topic or None)
        changed = await change_invisible_time(session.link, delivery, invisible_ms, suspend=request.suspend)
        self._renewals.remove(session, group, text)
        return v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())


class _Acks:
    """The statuses of the messages in one request."""

    __slots__ = ("_call", "_errors", "_left", "_renewals", "_session", "entries", "group", "places")

    def __init__(
        self, call: Call, entries: Sequence[tuple[str, str]], renewals: Renewals, session: ClientSession, group: str
    ) -> None:
        self._call = call
        self._errors: dict[int, v2.Status] = {}
        self.group: Final = group
        self._left = len(entries)
        self._renewals = renewals
        self._session = session
        self.entries: Final = entries
        """The message ID and the receipt handle of each message."""
        self.places: Final[list[int]] = []
        """The places in ``entries`` of the messages whose handles are valid."""

    def acknowledged(self, positions: Sequence[int], error: ProxyError | None) -> None:
        """Record the outcome for messages, given as positions in ``places``; stop renewing acknowledged messages."""
        places = [self.places[position] for position in positions]
        if error is None and self._renewals:
            for place in places:
                self._renewals.remove(self._session, self.group, self.entries[place][1])
        self.end(places, error)

    def end(self, places: Sequence[int], error: ProxyError | None) -> None:
        """Record the outcome for some messages; answer the call after the last one."""
        if error is not None:
            status = error.status
            self._errors.update(dict.fromkeys(places, status))
        self._left -= len(places)
        if not self._left:
            self._call.answer(self._response())

    def _response(self) -> bytes:
        if not self._errors:
            return _ALL_OK + b"".join([_entry(*entry, _STATUS_OK) for entry in self.entries])
        statuses = [self._errors.get(place, OK) for place in range(len(self.entries))]
        codes = {status.code for status in statuses}
        if len(codes) == 1:
            status = v2.Status(code=statuses[0].code, message=Code(statuses[0].code).name)
        else:
            status = v2.Status(code=Code.MULTIPLE_RESULTS, message="Multiple result")
        rows = zip(self.entries, statuses, strict=True)
        entries = [_entry(*entry, one.SerializeToString()) for entry, one in rows]
        return field(b"\x0a", status.SerializeToString()) + b"".join(entries)


def _entry(message_id: str, handle: str, status: bytes) -> bytes:
    """Encode an ``AckMessageResultEntry`` of a response."""
    return field(
        b"\x12",
        optional(b"\x0a", message_id.encode()) + optional(b"\x12", handle.encode()) + field(b"\x1a", status),
    )
