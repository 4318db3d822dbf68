"""``cometmq failover status``: the members of sets, and what to do; also the tables of other commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.failures import DONE, FAILED, PARTLY_DONE
from cometmq.cli.moments import local_time
from cometmq.cli.names import BROKER
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.failover.sets import BrokerSet, SetMember, find_sets
from cometmq.remoting.failover.bodies import FailoverChange
from cometmq.visible import json_text

_SINCE: Final = Column("since", "Since", time=True)
MEMBERS: Final = (
    Column("set", "Set"),
    Column("member", "Member"),
    Column("state", "State", state=True),
    Column("in_sync", "In sync"),
    Column("generation", "Generation", right=True),
    Column("epoch", "Epoch", right=True),
    Column("end", "End", right=True),
    Column("behind", "Behind", right=True),
    _SINCE,
    Column("why", "Why", prose=True),
)
_CHANGES: Final = (
    Column("at", "Time", time=True),
    Column("epoch", "Epoch", right=True),
    Column("master", "Master"),
    Column("in_sync", "In sync"),
    Column("why", "Why", prose=True),
)

broker_option = click.option(
    "-b", "--broker", metavar="BROKER", type=BROKER, help="The set: the brokerName of its members."
)
server_option = click.option(
    "--server", "servers", multiple=True, metavar="HOST:PORT", help="Ask this member, even if no nameserver knows it."
)


@click.command("status")
@broker_option
@server_option
@click.option("--changes", is_flag=True, help="Show the last changes of each set, too.")
@namesrv_option
@output_option
def status(broker: str | None, servers: tuple[str, ...], changes: bool, namesrv: str, output: str) -> int:
    """Show the members of each set, and what to do.

    Every member that answers says what it knows, so the command also works without a master. The exit code is 1 if a
    set has no master, or 3 if a member does not answer or is not in sync.
    """

    async def work(admin: Admin) -> tuple[list[BrokerSet], dict[str, str]]:
        return await find_sets(admin, broker, servers)

    sets, silent = administer(namesrv, work)
    if output in ("json", "jsonl"):
        found = [_whole(one) for one in sets]
        click.echo(json_text(found, indent=2) if output == "json" else "\n".join(map(json_text, found)))
    else:
        show([row for one in sets for row in member_rows(one)], MEMBERS, output, title="Members of sets")
        if output == "table":
            _say(sets, changes=changes)
    for name, reason in silent.items():
        notify(f"{name} does not answer: {reason}.")
    if any(one.master is None for one in sets):
        return FAILED
    return DONE if all(one.is_whole for one in sets) and not silent else PARTLY_DONE


def member_rows(found: BrokerSet) -> list[dict[str, Any]]:
    """Return a row for each member of a set."""
    return [_row(found, member) for member in found.members]


def _row(found: BrokerSet, member: SetMember) -> dict[str, Any]:
    said = member.status
    row: dict[str, Any] = {
        "set": found.name,
        "member": member.name,
        "address": member.address,
        "state": "does not answer" if said is None else said.state,
        "in_sync": member.in_sync,
        "generation": member.generation,
        "end": member.end,
        "behind": found.behind(member),
        "why": member.problem,
    }
    if said is not None:
        row |= {"epoch": said.epoch, "since": local_time(said.since_ms), "why": _why(said.reason, said.next_step)}
    return row


def _why(reason: str, next_step: str) -> str:
    return f"{reason} ({next_step})" if next_step else reason


def _whole(found: BrokerSet) -> dict[str, Any]:
    """Return a set as one object, for JSON."""
    document, master = found.document, found.master
    said = None if master is None else master.status
    return {
        "set": found.name,
        "cluster": found.cluster,
        "epoch": None if document is None else document.epoch,
        "master": None if master is None else master.name,
        "in_sync": None if document is None else document.in_sync,
        "min_in_sync": found.min_in_sync,
        "confirmed": None if said is None else said.confirmed,
        "refusal": None if said is None else said.refusal,
        "engine": found.engine,
        "engine_trouble": found.engine_trouble,
        "since": None if said is None else local_time(said.since_ms),
        "why": None if said is None else said.reason,
        "to_do": found.to_do(),
        "members": [_row(found, member) for member in found.members],
        "changes": [_change(change) for change in found.changes],
    }


def _change(change: FailoverChange) -> dict[str, Any]:
    return {
        "at": local_time(change.at_ms),
        "epoch": change.epoch,
        "master": change.master,
        "in_sync": change.in_sync,
        "why": change.why,
    }


def _say(sets: Sequence[BrokerSet], *, changes: bool) -> None:
    """Write what concerns a whole set."""
    for found in sets:
        if found.changes and changes:
            show([_change(one) for one in found.changes], _CHANGES, "table", title=f"Last changes of {found.name}")
        elif found.document is not None:
            last = found.document
            notify(f"Last change of {found.name}: {local_time(last.at_ms)}, {last.why}.")
        for sentence in found.to_do():
            notify(f"To do: {sentence}.")
