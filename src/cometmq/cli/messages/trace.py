"""``cometmq message trace``: trace one message from its producer to each consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.moments import PAST, local_time
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.errors import MasterNotFoundError, RouteNotFoundError
from cometmq.client.trace.reader import MessageWay, way_of
from cometmq.client.trace.steps import steps_of
from cometmq.errors import CometMQError
from cometmq.message.names import TRACE_TOPIC

_BAR_CHARS: Final = 24
_ENABLE: Final = "enable tracing in producer and consumers: --trace, enable_msg_trace or, in Java, enableMsgTrace"

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
    """The trace topic contains no record of a message."""


@click.command("trace")
@click.argument("message_id", metavar="ID")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic in which clients store traces.")
@click.option("--since", "--begin", "begin", type=PAST, default=0, help="Use only traces stored at or after this time.")
@click.option("--until", "--end", "end", type=PAST, help="Use only traces stored at or before this time.")
@namesrv_option
@output_option
def trace(message_id: str, trace_topic: str, begin: int, end: int | None, namesrv: str, output: str) -> None:
    """Show when a message was sent and consumed, and how long it took.

    ID is the client's id of the message (the unique key). Tracing must be enabled in producer and consumers (--trace,
    enable_msg_trace; in Java enableMsgTrace). Clients write traces every half second.
    """
    last = END_OF_TIME_MS if end is None else end

    async def work(admin: Admin) -> MessageWay:
        return await way_of(admin, message_id, topic=trace_topic, begin_ms=begin, end_ms=last)

    try:
        way = administer(namesrv, work)
    except MasterNotFoundError:
        raise
    except RouteNotFoundError as error:
        raise NotTracedError(f"no message is traced: there is no topic {trace_topic}", next_step=_ENABLE) from error
    if not way.is_known and output == "table":
        raise NotTracedError(
            f"{trace_topic} has no trace of {message_id}", next_step=f"give the client's id, and {_ENABLE}"
        )
    if output == "table":
        show_way(way)
    else:
        keys = ("time", *(column.key for column in _COLUMNS), "topic", "msg_type", "offset_msg_id")
        show(rows_of(way), tuple(Column(key, key) for key in keys), output)


def show_way(way: MessageWay) -> None:
    """Write a message's trace to stdout, with a line and a bar for each step."""
    show(_with_bars(rows_of(way)), (*_COLUMNS, Column("bar", "Time")), "table", title=f"Trace of {way.msg_id}")


def rows_of(way: MessageWay) -> list[dict[str, Any]]:
    """Return a row for each step, sorted by time."""
    rows = []
    for step in steps_of(way):
        row = asdict(step)
        at = row.pop("time_ms")
        rows.append({"time": None if at is None else local_time(at), **row})
    return rows


def _with_bars(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add a bar from start to end to each row. All bars use one time scale."""
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
