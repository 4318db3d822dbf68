"""``cometmq transaction``: list open transactions, and resume those that the broker gave up on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import click

from cometmq.cli.connection import administer, ask_cometmq_broker, demand_group_name, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.several import asked_masters
from cometmq.client.errors import BrokerError, RouteNotFoundError, UnknownBrokerError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.remoting.admin_bodies import OpenTransaction

_LIST: Final = (
    Column("broker", "Broker"),
    Column("group", "Producer group"),
    Column("topic", "Topic", prose=True, topics=True),
    Column("queue_id", "Queue", right=True),
    Column("transaction_id", "Transaction"),
    Column("begun", "Begun", time=True),
    Column("age_s", "Age s", right=True),
    Column("check_times", "Checks", right=True),
)


@click.group("transaction")
def command() -> None:
    """List open transactions, and resume those that the broker gave up on."""


@command.command("list")
@click.option("--group", help="List only transactions of this producer group.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of transactions from each broker.",
)
@namesrv_option
@output_option
def list_open(group: str | None, limit: int, namesrv: str, output: str) -> None:
    """List transactions that are neither committed nor rolled back."""
    if group is not None:
        demand_group_name(group)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        def ask(name: str, address: str) -> Awaitable[list[OpenTransaction]]:
            asking = admin.open_transactions(address, group=group, limit=limit)
            return ask_cometmq_broker(name, asking, "list its transactions", "only CometMQ's brokers can")

        found = await asked_masters(admin, ask)
        now = SYSTEM_CLOCK.now_ms()
        return [_row(name, transaction, now) for name, listed in sorted(found.items()) for transaction in listed]

    show(administer(namesrv, work), _LIST, output, title="Open transactions")


@command.command("resume")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@dry_run_option
@namesrv_option
def resume(ids: tuple[str, ...], namesrv: str) -> int:
    """Ask producers again about transactions that the broker gave up on.

    ID is the transaction's id, or the offset id of its message in TRANS_CHECK_MAX_TIME_TOPIC. Resuming an open
    transaction only resets its number of checks.
    """

    async def work(admin: Admin) -> list[str]:
        failed = []
        resumed: list[Change] = []
        for one in ids:
            try:
                place = await _offset_id(admin, one)
                if is_dry_run():
                    await admin.message_by_id(place)
                    resumed.append(Change("its broker", one, "given up", "checked again"))
                    continue
                await admin.resume_transaction(place)
                notify(f"{one}: its producers will be asked")
            except (ValueError, BrokerError, RouteNotFoundError, UnknownBrokerError) as error:
                failed.append(f"{one}: {error}")
        show_only("transactions", resumed)
        return failed

    failed = administer(namesrv, work)
    for sentence in failed:
        notify(sentence)
    if len(failed) == len(ids):
        raise CometMQError(
            "no transaction was resumed",
            next_step="list them with "
            f"cometmq consume {TRANS_CHECK_MAX_TIME_TOPIC} --from-beginning --until-end -o jsonl",
        )
    return PARTLY_DONE if failed else DONE


async def _offset_id(admin: Admin, name: str) -> str:
    """Return the offset id of the newest message of a transaction that was given up; return any other ``name``
    unchanged.
    """
    try:
        found = await admin.query_message(TRANS_CHECK_MAX_TIME_TOPIC, name, max_messages=64, unique_key=True)
    except RouteNotFoundError:  # no transaction was ever given up here
        found = []
    return found[-1].offset_msg_id if found else name


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
