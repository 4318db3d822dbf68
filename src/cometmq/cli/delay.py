"""``cometmq delay``: what waits for its time."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.administration import administer, gathered, namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.remoting.codes import ResponseCode

_WITHIN: Final = {"minute": 60, "hour": 3_600, "day": 86_400, "30_days": 2_592_000}
_WAITING: Final = (
    Column("broker", "Broker"),
    Column("topic", "Topic"),
    Column("waiting", "Waiting", right=True),
    Column("first_due", "First due", time=True),
    Column("last_due", "Last due", time=True),
    Column("within_minute", "In 1 min", right=True),
    Column("within_hour", "In 1 h", right=True),
    Column("within_day", "In 1 day", right=True),
    Column("within_30_days", "In 30 days", right=True),
    Column("state", "State", prose=True),
)


@click.group("delay")
def command() -> None:
    """Show messages with a delay of their own."""


@command.command("waiting")
@click.option("-t", "--topic", help="Only this topic.")
@namesrv_option
@output_option
def waiting(topic: str | None, namesrv: str, output: str) -> int:
    """Count the messages that wait at each broker, by topic and by how soon they are due.

    The columns of minutes, hours and days count what is due until then. Exit code 3 when a broker does not answer.
    """

    async def work(admin: Admin) -> list[list[dict[str, Any]]]:
        masters = await admin.masters()
        return list((await gathered({name: _rows(admin, name, at, topic) for name, at in masters.items()})).values())

    rows = [row for rows in administer(namesrv, work) for row in rows]
    show(rows, _WAITING, output, title="Waiting messages")
    return DONE if all(row["state"] == "ok" for row in rows) else PARTLY_DONE


async def _rows(admin: Admin, broker: str, address: str, topic: str | None) -> list[dict[str, Any]]:
    try:
        metrics = await admin.waiting(address)
    except (BrokerError, RemotingError) as error:
        old = isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return [{"broker": broker, "state": "knows delay levels only" if old else error.message}]
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
