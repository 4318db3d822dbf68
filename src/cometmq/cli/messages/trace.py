"""``cometmq message trace``: trace one message from its producer to each consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.moments import PAST, local_time
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.trace.reader import MessageWay, way_of
from cometmq.errors import CometMQError
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.properties import MessageType

_BAR_CHARS: Final = 24
_RESULTS: Final = ("ok", "timed out", "raised", "returned null", "failed")
"""Results by the context code of a SubAfter."""

_COLUMNS: Final = (
    Column("after_ms", "After ms", right=True),
    Column("step", "Step"),
    Column("group", "Group"),
    Column("client", "Client"),
    Column("broker", "Broker"),
    Column("attempt", "Try", right=True),
    Column("took_ms", "Took ms", right=True),
    Column("result", "Result"),
)


class NotTracedError(CometMQError):
    """The trace topic has nothing about a message."""


@click.command("trace")
@click.argument("message_id", metavar="ID")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic with the clients' traces.")
@click.option("--since", "--begin", "begin", type=PAST, default=0, help="Traces stored at or after this time.")
@click.option("--until", "--end", "end", type=PAST, help="Traces stored at or before this time.")
@namesrv_option
@output_option
def trace(message_id: str, trace_topic: str, begin: int, end: int | None, namesrv: str, output: str) -> None:
    """Show each send and consumption of a message with its duration.

    ID is the client's (the unique key). Producer and consumers must have their trace switched on (--trace,
    enable_msg_trace; in Java enableMsgTrace). Clients write traces every half second.
    """
    last = END_OF_TIME_MS if end is None else end

    async def work(admin: Admin) -> MessageWay:
        return await way_of(admin, message_id, topic=trace_topic, begin_ms=begin, end_ms=last)

    way = administer(namesrv, work)
    if not way.is_known and output == "table":
        raise NotTracedError(
            f"{trace_topic} has nothing about {message_id}",
            next_step="give the client's id, and switch on the trace of producer and consumers: --trace, "
            "enable_msg_trace or, in Java, enableMsgTrace",
        )
    if output == "table":
        show_way(way)
    else:
        keys = ("time", *(column.key for column in _COLUMNS), "topic", "msg_type", "offset_msg_id")
        show(rows_of(way), tuple(Column(key, key) for key in keys), output)


def show_way(way: MessageWay) -> None:
    """Write the trace of a message to stdout, a line and a bar for each step."""
    show(_with_bars(rows_of(way)), (*_COLUMNS, Column("bar", "Time")), "table", title=f"Trace of {way.msg_id}")


def rows_of(way: MessageWay) -> list[dict[str, Any]]:
    """Return a row for each step, in the order of time."""
    steps: list[tuple[int | None, dict[str, Any]]] = []
    for sent, host in way.sends:
        row = {
            "step": "sent",
            "group": sent.group,
            "client": host,
            "broker": sent.store_host,
            "took_ms": sent.cost_ms,
            "result": "ok" if sent.success else "stored, not safely",
            "topic": sent.topic,
            "msg_type": _type_name(sent.msg_type),
            "offset_msg_id": sent.offset_msg_id,
        }
        steps.append((sent.time_ms, row))
    for ended, host in way.transaction_ends:
        row = {
            "step": "checked" if ended.from_transaction_check else "ended",
            "group": ended.group,
            "client": host,
            "broker": ended.store_host,
            "result": ended.transaction_state,
            "topic": ended.topic,
            "msg_type": _type_name(ended.msg_type),
        }
        steps.append((ended.time_ms, row))
    for call in way.consumptions:
        row = {
            "step": "consumed",
            "group": call.group,
            "client": call.client_host,
            "attempt": None if call.retry_times is None else call.retry_times + 1,
            "took_ms": call.cost_ms,
            "result": _result(call.context_code),
        }
        steps.append((call.begun_at_ms, row))
    steps.sort(key=lambda step: (step[0] is None, step[0] or 0))
    first = next((at for at, _ in steps if at is not None), 0)
    return [
        {
            "time": None if at is None else local_time(at),
            "after_ms": None if at is None else at - first,
            **row,
        }
        for at, row in steps
    ]


def _type_name(number: int) -> str:
    try:
        return str(MessageType(number).name)
    except ValueError:
        return str(number)


def _result(code: int | None) -> str:
    if code is None:
        return "runs, or its end was not traced"
    return _RESULTS[code] if 0 <= code < len(_RESULTS) else f"code {code}"


def _with_bars(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add a bar from begin to end to each row, all on one scale."""
    total = max((((row["after_ms"] or 0) + (row.get("took_ms") or 0)) for row in rows), default=0) or 1

    def bar(row: dict[str, Any]) -> str:
        after_ms: int | None = row["after_ms"]
        if after_ms is None:
            return ""
        took_ms: int = row.get("took_ms") or 0
        start = min(after_ms * _BAR_CHARS // total, _BAR_CHARS - 1)
        length = max(1, took_ms * _BAR_CHARS // total)
        return "·" * start + "█" * min(length, _BAR_CHARS - start)

    return [{**row, "bar": bar(row)} for row in rows]
