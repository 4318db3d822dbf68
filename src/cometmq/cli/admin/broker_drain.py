"""``cometmq broker drain``: stop new messages to a broker, and wait until consumers have read all its messages."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import DONE, PARTLY_DONE, WrongUseError
from cometmq.cli.moments import Duration
from cometmq.cli.names import BROKER
from cometmq.cli.output import Column, notify, output_option, show, show_one
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.drain import (
    CHECK_SECONDS,
    PERMISSION_KEY,
    SETTLE_SECONDS,
    Drain,
    DrainRefusedError,
    Left,
    producer_kinds,
)
from cometmq.client.admin.several import chosen_masters
from cometmq.client.errors import BrokerError
from cometmq.message.names import PERM_WRITE

_GROUPS: Final = (
    Column("group", "Group"),
    Column("topic", "Topic", topics=True),
    Column("messages", "Not read", right=True),
    Column("members", "Members", right=True),
)
_PRODUCERS: Final = (
    Column("language", "Language"),
    Column("version", "Version"),
    Column("producers", "Producers", right=True),
    Column("groups", "Groups or topics"),
    Column("restart", "Sends in a restart without a drain", prose=True),
)
_WAYS: Final = ("groups", "slave", "either")


@click.command("drain")
@click.argument("broker", type=BROKER)
@click.option(
    "--until",
    "until",
    type=click.Choice(_WAYS),
    default="groups",
    show_default=True,
    help="Wait until every message has been consumed by all groups, copied to a slave, or either of the two.",
)
@click.option(
    "--at-most", "limit", type=Duration(), metavar="TIME", help="Stop waiting after this time, with exit code 3."
)
@click.option(
    "--settle",
    type=Duration(),
    default=timedelta(seconds=SETTLE_SECONDS),
    show_default="35s",
    metavar="TIME",
    help="How long to wait for clients to fetch the new routes.",
)
@click.option("--skip", "skipped", multiple=True, metavar="GROUP", help="Do not wait for this group. May be repeated.")
@click.option("--skip-idle", is_flag=True, help="Do not wait for groups that have no members.")
@click.option("--undo", is_flag=True, help="Let producers use the broker again.")
@click.option("--force", is_flag=True, help="Drain the broker even if no other broker accepts messages for a topic.")
@dry_run_option
@namesrv_option
@output_option
def command(
    broker: str,
    until: str,
    limit: timedelta | None,
    settle: timedelta,
    skipped: tuple[str, ...],
    skip_idle: bool,
    undo: bool,
    force: bool,
    namesrv: str,
    output: str,
) -> int:
    """Stop new messages to BROKER, and wait until consumers have read all its messages.

    Producers switch to other brokers without errors. Ctrl-C only stops the waiting; --undo lets producers use the
    broker again. The exit code is 3 if messages remain when the time limit is reached.
    """

    async def work(admin: Admin) -> int:
        masters = await chosen_masters(admin, None, broker)
        drain = Drain(admin, broker, masters[broker], settle_s=settle.total_seconds())
        if undo:
            return await _undo(drain, broker)
        if is_dry_run():
            await _show_producers(admin, broker, masters[broker])
        alone = await drain.topics_only_here()
        if alone and not force:
            raise DrainRefusedError(
                f"no other broker accepts messages for {', '.join(alone[:10])}; nothing was changed",
                next_step="create these topics on another broker (cometmq topic create), or add --force",
            )
        permission = await drain.permission()
        if show_only(broker, [Change(broker, PERMISSION_KEY, permission, permission & ~PERM_WRITE)]):
            return DONE
        clock = admin.instance.clock
        end = None if limit is None else clock.monotonic() + limit.total_seconds()
        notify(f"Producers are leaving {broker}: clients have {settle.total_seconds():g} s to fetch the new routes.")
        await drain.begin()
        notify(f"{broker} accepts no new messages ({PERMISSION_KEY}={permission & ~PERM_WRITE}).")
        said = ""
        while True:
            left = (await drain.check()).ignoring(frozenset(skipped), idle=skip_idle)
            if _is_done(left, until):
                _result(broker, left, output, is_done=True)
                return DONE
            if (sentence := _sentence(left, until)) != said:
                said = sentence
                notify(sentence)
            if end is not None and clock.monotonic() >= end:
                _result(broker, left, output, is_done=False)
                return PARTLY_DONE
            await clock.sleep(CHECK_SECONDS)

    if undo and (skipped or skip_idle or limit is not None):
        raise WrongUseError("--undo cannot be combined with other options")
    try:
        return administer(namesrv, work)
    except KeyboardInterrupt:
        notify(f"{broker} still accepts no new messages; to use it again: cometmq broker drain {broker} --undo.")
        raise


async def _show_producers(admin: Admin, broker: str, address: str) -> None:
    """Show what the sends of this broker's producers do if it is restarted without a drain."""
    try:
        kinds = await producer_kinds(admin, address)
    except BrokerError:
        notify(f"{broker} does not list its producers: it is older than RocketMQ 4.9.3.")
        return
    if kinds:
        show([asdict(kind) for kind in kinds], _PRODUCERS, "table", title=f"Producers of {broker}")


async def _undo(drain: Drain, broker: str) -> int:
    permission = await drain.permission()
    if show_only(broker, [Change(broker, PERMISSION_KEY, permission, permission | PERM_WRITE)]):
        return DONE
    await drain.undo()
    notify(f"{broker} accepts messages again; producers find it within 30 s.")
    return DONE


def _is_done(left: Left, until: str) -> bool:
    read, copied = left.is_consumed(), left.is_copied()
    return {"groups": read, "slave": copied, "either": read or copied}[until]


def _sentence(left: Left, until: str) -> str:
    parts: list[str] = []
    if until != "slave":
        total = sum(one.messages for one in left.groups)
        if left.groups:
            first = left.groups[0]
            idle = "" if first.members else ", which has no members"
            parts.append(f"{total:,} messages, {first.messages:,} of them for group {first.group}{idle}")
        if left.delayed:
            parts.append(f"{left.delayed:,} delayed messages")
        if left.transactions:
            parts.append(f"{left.transactions:,} open transactions")
    if until != "groups":
        parts.append("no slave" if left.slave_bytes is None else f"{left.slave_bytes:,} bytes for the slave")
    if not left.settled:
        parts.append("messages arrived just now")
    return f"Left: {'; '.join(parts) or 'nothing'}."


def _result(broker: str, left: Left, output: str, *, is_done: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"group": one.group, "topic": one.topic, "messages": one.messages, "members": one.members}
        for one in left.groups
    ]
    if output == "table":
        if rows:
            show(rows, _GROUPS, output, title=f"Left on {broker}")
        if is_done:
            notify(f"{broker} is drained: stop it now, or use it again with --undo.")
        else:
            notify(f"{_sentence(left, 'either')} Time limit reached; {broker} still accepts no new messages.")
        return
    figures = {"delayed": left.delayed, "transactions": left.transactions, "slave_bytes": left.slave_bytes}
    show_one({"broker": broker, "drained": is_done, **figures, "groups": rows}, output)
