"""``cometmq failover``: show sets that elect their master, hand over, and force an election."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import DONE, FAILED, PARTLY_DONE, WrongUseError
from cometmq.cli.moments import local_time
from cometmq.cli.names import BROKER
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.broker_sets import BrokerSet, SetMember, find_sets
from cometmq.client.admin.changes import Change
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.errors import CometMQError
from cometmq.remoting.failover_bodies import FailoverChange, ForceMasterRequestHeader
from cometmq.visible import json_text

_WAIT_S: Final = 20.0
"""Time after which a command no longer waits for the new master."""
_LOOK_S: Final = 0.1
_SINCE: Final = Column("since", "Since", time=True)
_MEMBERS: Final = (
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
why_option = click.option("--why", default="", metavar="TEXT", help="The reason, which the set's document keeps.")


@click.group("failover")
def command() -> None:
    """Show sets of brokers that elect their master, hand over, and force an election."""


@command.command("status")
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
        show([row for one in sets for row in _rows(one)], _MEMBERS, output, title="Members of sets")
        if output == "table":
            _say(sets, changes=changes)
    for name, reason in silent.items():
        notify(f"{name} does not answer: {reason}.")
    if any(one.master is None for one in sets):
        return FAILED
    return DONE if all(one.is_whole for one in sets) and not silent else PARTLY_DONE


@command.command("handover")
@broker_option
@click.option("--to", metavar="MEMBER", default="", help="The next master.  [default: the one that is furthest]")
@why_option
@server_option
@dry_run_option
@namesrv_option
def handover(broker: str | None, to: str, why: str, servers: tuple[str, ...], namesrv: str) -> None:
    """Make another member of a set the master.

    It takes less than a second, and no acknowledged message is lost. Producers with retries notice nothing.
    """

    async def work(admin: Admin) -> None:
        found = await _one(admin, broker, servers)
        master = found.master
        if master is None:
            raise CometMQError(found.to_do()[0])
        if to == master.name:
            notify(f"{to} is already the master of {found.name}; nothing was changed.")
            return
        if is_dry_run():
            show_only(found.name, [Change(found.name, "master", master.name, to or _furthest(found))])
            return
        began = admin.instance.clock.monotonic()
        try:
            await admin.hand_over(master.address, found.name, to=to, why=why)
        except RemotingError as error:  # the master may have closed the connection because it is done
            notify(f"{master.name} did not answer: {error.message}; looking for the new master.")
        now = await _next_master(admin, found)
        took = admin.instance.clock.monotonic() - began
        notify(f"{now} is the master of {found.name} ({took:.1f} s).")

    administer(namesrv, work)


@command.command("force")
@broker_option
@click.option(
    "--member", "name", metavar="MEMBER", default="", help="The next master.  [default: the one with the longest log]"
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@why_option
@server_option
@dry_run_option
@namesrv_option
def force(broker: str | None, name: str, yes: bool, why: str, servers: tuple[str, ...], namesrv: str) -> None:
    """Make a member the master, and accept the loss of messages.

    Use it only if the set has no master, and no member of the in-sync set can be started any more. The command shows
    which log has what, and asks for the set's name. Members that return later set aside what the new master lacks.
    """

    async def work(admin: Admin) -> None:
        found = await _one(admin, broker, servers)
        if found.master is not None:
            raise CometMQError(
                f"{found.name} has a master, {found.master.name}",
                next_step=f"use cometmq failover handover -b {found.name}",
            )
        chosen = found.member(name) if name else found.longest
        if chosen is None or chosen.status is None or found.document is None:
            known = ", ".join(one.name for one in found.members if one.status is not None)
            raise CometMQError(
                f"{name or 'no member'} cannot be forced: it does not answer, or has not read the document",
                next_step=f"start it, or name one that answers: {known}",
            )
        show(_rows(found), _MEMBERS, "table", title=f"Members of {found.name}")
        for sentence in _risks(found, chosen):
            notify(sentence)
        if is_dry_run():
            show_only(found.name, [Change(found.name, "master", found.document.master, chosen.status.member)])
            return
        if not yes:
            _confirm_by_name(found.name, chosen.name)
        header = ForceMasterRequestHeader(found.name, chosen.status.member, found.document.epoch, why)
        await admin.force_master(chosen.address, header)
        notify(f"{await _next_master(admin, found)} is the master of {found.name}.")

    administer(namesrv, work)


def _confirm_by_name(name: str, member: str) -> None:
    """Ask the user to type the name of the set.

    :raises WrongUseError: stdin is not a terminal, so ``--yes`` is required.
    :raises CometMQError: the user typed something else.
    """
    if not sys.stdin.isatty():
        raise WrongUseError(
            f"forcing {member} to be the master may lose messages; nothing was changed",
            next_step="add --yes to confirm",
        )
    typed = click.prompt(f"Type the name of the set ({name}) to make {member} its master", err=True, default="")
    if typed.strip() != name:
        raise CometMQError("nothing was changed", next_step=f"type {name} to confirm")


async def _one(admin: Admin, broker: str | None, servers: Sequence[str]) -> BrokerSet:
    """Return the set that a command changes.

    :raises WrongUseError: there are several sets.
    """
    sets, _ = await find_sets(admin, broker, servers)
    if len(sets) > 1:
        names = ", ".join(one.name for one in sets)
        raise WrongUseError("there are several sets", next_step=f"choose one with -b: {names}")
    return sets[0]


async def _next_master(admin: Admin, before: BrokerSet) -> str:
    """Wait for the master of a later epoch, and return its name.

    :raises CometMQError: there is none in time.
    """
    clock = admin.instance.clock
    epoch = 0 if before.document is None else before.document.epoch
    addresses = [one.address for one in before.members]
    end = clock.monotonic() + _WAIT_S
    while clock.monotonic() < end:
        try:
            (found,), _ = await find_sets(admin, before.name, addresses)
        except (BrokerError, RemotingError, CometMQError):
            found = before
        master = found.master
        if master is not None and found.document is not None and found.document.epoch > epoch:
            return master.name
        await clock.sleep(_LOOK_S)
    raise CometMQError(
        f"{before.name} has no new master after {_WAIT_S:g} s",
        next_step=f"look at cometmq failover status -b {before.name} --changes",
    )


def _furthest(found: BrokerSet) -> str | None:
    ready = [one for one in found.members if one.in_sync and one is not found.master and one.end is not None]
    return max(ready, key=lambda one: one.end or 0).name if ready else None


def _risks(found: BrokerSet, chosen: SetMember) -> list[str]:
    """Say what may be lost if a member becomes the master."""
    assert chosen.status is not None
    said = []
    silent = [one.name for one in found.members if one.status is None]
    longer = [one.name for one in found.members if one.rank > chosen.rank]
    if silent:
        said.append(f"{', '.join(silent)} did not answer and may have messages that {chosen.name} lacks.")
    if longer:
        said.append(f"{', '.join(longer)} has a longer log than {chosen.name}: its last messages will be set aside.")
    if not chosen.in_sync:
        said.append(f"{chosen.status.member} is not in sync, so acknowledged messages may be lost.")
    return said


# --- output --------------------------------------------------------------------------------------------
def _rows(found: BrokerSet) -> list[dict[str, Any]]:
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
