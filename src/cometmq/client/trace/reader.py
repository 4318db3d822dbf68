"""Reads a message's trace from the trace topic (``QueryMsgTraceById``)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.hosts import parse_address
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, decode_trace


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """A listener call that received the message."""

    group: str
    client_host: str
    request_id: str
    retry_times: int | None = None
    begun_at_ms: int | None = None
    """Start time, or ``None`` if only the end was recorded."""
    cost_ms: int | None = None
    """Duration of the call, or ``None`` while it is running or if its end was not recorded."""
    success: bool | None = None
    context_code: int | None = None


class MessageWay(msgspec.Struct, frozen=True, kw_only=True):
    """A message's trace. Each list is in chronological order."""

    msg_id: str
    sends: tuple[tuple[Pub, str], ...] = ()
    """The records of all sends, with the producer's host."""
    transaction_ends: tuple[tuple[EndTransaction, str], ...] = ()
    consumptions: tuple[Consumption, ...] = ()

    @property
    def is_known(self) -> bool:
        """Return whether there are any records."""
        return bool(self.sends or self.transaction_ends or self.consumptions)


async def way_of(
    admin: Admin, msg_id: str, *, topic: str = TRACE_TOPIC, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS
) -> MessageWay:
    """Read a message's trace, written by any client.

    :param msg_id: the client's id (unique key) of the message.
    :raises RouteNotFoundError: the trace topic does not exist.
    """
    found = await admin.query_message(topic, msg_id, max_messages=MAX_QUERY_MESSAGES, begin_ms=begin_ms, end_ms=end_ms)
    return way_from(msg_id, ((message.body, message.born_host) for message in found))


def way_from(msg_id: str, trace_messages: Iterable[tuple[bytes, str]]) -> MessageWay:
    """Build a message's trace from trace messages, each given as its body and its born host (``ip:port``)."""
    records: list[tuple[TraceRecord, str]] = [
        (record, record.client_host or _host(born_host))
        if isinstance(record, Pub | SubBefore)
        else (record, _host(born_host))
        for body, born_host in trace_messages
        for record in decode_trace(body)
        if record.msg_id == msg_id
    ]
    sends = [(record, host) for record, host in records if isinstance(record, Pub)]
    ends = [(record, host) for record, host in records if isinstance(record, EndTransaction)]
    return MessageWay(
        msg_id=msg_id,
        sends=tuple(sorted(sends, key=lambda it: it[0].time_ms)),
        transaction_ends=tuple(sorted(ends, key=lambda it: it[0].time_ms)),
        consumptions=_consumptions(records),
    )


def _consumptions(records: list[tuple[TraceRecord, str]]) -> tuple[Consumption, ...]:
    """Join the start and end records of each call."""
    calls: dict[str, Consumption] = {}
    for record, host in records:
        if isinstance(record, SubBefore):
            calls[record.request_id] = Consumption(
                group=record.group,
                client_host=host,
                request_id=record.request_id,
                retry_times=record.retry_times,
                begun_at_ms=record.time_ms,
            )
    for record, host in records:
        if isinstance(record, SubAfter):
            begun = calls.get(record.request_id) or Consumption(
                group=record.group or "", client_host=host, request_id=record.request_id
            )
            calls[record.request_id] = msgspec.structs.replace(
                begun, cost_ms=record.cost_ms, success=record.success, context_code=record.context_code
            )
    return tuple(sorted(calls.values(), key=lambda call: (call.begun_at_ms is None, call.begun_at_ms or 0)))


def _host(address: str) -> str:
    return parse_address(address)[0]
