"""``cometmq delay``: show delayed messages that are not due yet."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import click

from cometmq.cli.connection import administer, ask_cometmq_broker, demand_topic_name, namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.moments import Moment, local_time
from cometmq.cli.names import TOPIC
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.admin.several import asked_masters
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.remoting.admin_bodies import WaitingMessage
from cometmq.remoting.codes import ResponseCode

_WITHIN: Final = {"minute": 60, "hour": 3_600, "day": 86_400, "30_days": 2_592_000}
_WAITING: Final = (
    Column("broker", "Broker"),
    Column("topic", "Topic", topics=True),
    Column("waiting", "Waiting", right=True),
    Column("first_due", "First due", time=True),
    Column("last_due", "Last due", time=True),
    Column("within_minute", "In 1 min", right=True),
    Column("within_hour", "In 1 h", right=True),
    Column("within_day", "In 1 day", right=True),
    Column("within_30_days", "In 30 days", right=True),
    Column("state", "State", prose=True),
)


_LIST: Final = (
    Column("broker", "Broker"),
    Column("due", "Due", time=True),
    Column("topic", "Topic", prose=True, topics=True),
    Column("queue_id", "Queue", right=True),
    Column("msg_id", "Message"),
    Column("position", "Position", right=True),
    Column("size", "Bytes", right=True),
    Column("born", "Born", time=True),
)


@click.group("delay")
def command() -> None:
    """Show delayed messages that are not due yet."""


@command.command("waiting")
@click.option("-t", "--topic", type=TOPIC, help="Count only messages for this topic.")
@namesrv_option
@output_option
def waiting(topic: str | None, namesrv: str, output: str) -> int:
    """Count waiting messages by broker, topic and due time.

    The columns for minutes, hours and days count the messages that are due within that time. The exit code is 3 if a
    broker does not answer.
    """

    async def work(admin: Admin) -> list[list[dict[str, Any]]]:
        return list((await asked_masters(admin, lambda name, at: _rows(admin, name, at, topic))).values())

    rows = [row for rows in administer(namesrv, work) for row in rows]
    show(rows, _WAITING, output, title="Waiting messages")
    return DONE if all(row["state"] == "ok" for row in rows) else PARTLY_DONE


@command.command("list")
@click.option("-t", "--topic", type=TOPIC, help="List only messages for this topic.")
@click.option(
    "--since", "--begin", "begin", type=Moment(), default=0, help="List only messages due at or after this time."
)
@click.option(
    "--until", "--end", "end", type=Moment(), default=END_OF_TIME_MS, help="List only messages due before this time."
)
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of messages to list."
)
@namesrv_option
@output_option
def list_waiting(topic: str | None, begin: int, end: int, limit: int, namesrv: str, output: str) -> None:
    """List waiting messages in the order of their due times.

    The position is the queue offset in rmq_sys_wheel_timer. A message appears about a second after it was sent.
    """
    if topic is not None:
        demand_topic_name(topic)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        def ask(name: str, address: str) -> Awaitable[list[WaitingMessage]]:
            asking = admin.waiting_messages(address, topic=topic, begin_ms=begin, end_ms=end, limit=limit)
            next_step = "only CometMQ's brokers can; cometmq delay waiting counts them on RocketMQ 5, too"
            return ask_cometmq_broker(name, asking, "list waiting messages", next_step)

        found = await asked_masters(admin, ask)
        ordered = sorted(
            ((name, message) for name, messages in found.items() for message in messages),
            key=lambda named: (named[1].due, named[0], named[1].position),
        )
        return [_row(name, message) for name, message in ordered[:limit]]

    show(administer(namesrv, work), _LIST, output, title="Waiting messages")


def _row(broker: str, message: WaitingMessage) -> dict[str, Any]:
    return {
        "broker": broker,
        "due": local_time(message.due),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "msg_id": message.uniq_key,
        "position": message.position,
        "size": message.size,
        "born": local_time(message.born),
    }


async def _rows(admin: Admin, broker: str, address: str, topic: str | None) -> list[dict[str, Any]]:
    try:
        metrics = await admin.waiting(address)
    except (BrokerError, RemotingError) as error:
        old = isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return [{"broker": broker, "state": "supports only delay levels" if old else error.message}]
    rows = []
    for name, metric in sorted(metrics.items()):
        if topic not in (None, name):
            continue
        within = metric.due_within or {}
        rows.append(
            {
                "broker": broker,
                "topic": name,
                "waiting": metric.count,
                "first_due": local_time(metric.first_due_time),
                "last_due": local_time(metric.last_due_time),
                **{f"within_{word}": within.get(seconds) for word, seconds in _WITHIN.items()},
                "state": "ok",
            }
        )
    return rows
