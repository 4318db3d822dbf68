"""``cometmq transaction``: transactions that are neither committed nor rolled back."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.administration import administer, demand_group_name, gathered, namesrv_option
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import OpenTransaction
from cometmq.remoting.codes import ResponseCode

_LIST: Final = (
    Column("broker", "Broker"),
    Column("group", "Producer group"),
    Column("topic", "Topic", prose=True),
    Column("queue_id", "Queue", right=True),
    Column("transaction_id", "Transaction"),
    Column("begun", "Begun", time=True),
    Column("age_s", "Age s", right=True),
    Column("check_times", "Checks", right=True),
)


@click.group("transaction")
def command() -> None:
    """List transactions that are neither committed nor rolled back."""


@command.command("list")
@click.option("--group", help="Only of this producer group.")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many of each broker."
)
@namesrv_option
@output_option
def list_open(group: str | None, limit: int, namesrv: str, output: str) -> None:
    """List open transactions: whose they are, for how long, and how often their producers were asked."""
    if group is not None:
        demand_group_name(group)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        masters = await admin.masters()
        found = await gathered({name: _of_broker(admin, name, masters[name], group, limit) for name in masters})
        now = SYSTEM_CLOCK.now_ms()
        return [_row(name, transaction, now) for name, listed in sorted(found.items()) for transaction in listed]

    show(administer(namesrv, work), _LIST, output, title="Open transactions")


async def _of_broker(admin: Admin, name: str, address: str, group: str | None, limit: int) -> list[OpenTransaction]:
    """The open transactions of one broker.

    :raises CometMQError: it is not CometMQ's.
    """
    try:
        return await admin.open_transactions(address, group=group, limit=limit)
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise CometMQError(
                f"broker {name} cannot list its transactions", next_step="only brokers of CometMQ can"
            ) from error
        raise


def _row(broker: str, transaction: OpenTransaction, now_ms: int) -> dict[str, Any]:
    return {
        "broker": broker,
        "group": transaction.group,
        "topic": transaction.topic,
        "queue_id": transaction.queue_id,
        "transaction_id": transaction.uniq_key,
        "begun": local_time(transaction.begun),
        "age_s": max(0, now_ms - transaction.begun) // 1000,
        "check_times": transaction.check_times,
    }
