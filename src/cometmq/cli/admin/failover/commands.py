"""``cometmq failover handover`` and ``force``: another member becomes the master."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import click

from cometmq.cli.admin.failover.status import MEMBERS, broker_option, member_rows, server_option
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import WrongUseError
from cometmq.cli.output import notify, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.failover.sets import MASTER, BrokerSet, SetMember, find_sets
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.errors import CometMQError
from cometmq.remoting.failover.headers import ForceMasterRequestHeader

_STATUS: Final = "cometmq failover status"
_WAIT_S: Final = 20.0
"""Time after which a command no longer waits for the new master."""
_LOOK_S: Final = 0.1
_ASK_S: Final = 2.0
"""Time that a member has to answer while a command waits for the new master."""
why_option = click.option("--why", default="", metavar="TEXT", help="The reason, which the set's document keeps.")


@click.command("handover")
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
        if to and now != to:
            raise CometMQError(f"the master is {now}, and not {to}", next_step=f"look at {_STATUS} --changes")

    administer(namesrv, work)


@click.command("force")
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
        show(member_rows(found), MEMBERS, "table", title=f"Members of {found.name}")
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
    """Wait for the master of a later epoch, and return its name. Members that do not answer delay nothing.

    :raises CometMQError: there is none in time.
    """
    clock = admin.instance.clock
    epoch = 0 if before.document is None else before.document.epoch
    end = clock.monotonic() + _WAIT_S
    while clock.monotonic() < end:
        asked = [asyncio.create_task(_master_at(admin, one.address, epoch)) for one in before.members]
        try:
            for answer in asyncio.as_completed(asked):
                if name := await answer:
                    return name
        finally:
            for task in asked:
                task.cancel()
        await clock.sleep(_LOOK_S)
    raise CometMQError(
        f"{before.name} has no new master after {_WAIT_S:g} s",
        next_step=f"look at {_STATUS} -b {before.name} --changes",
    )


async def _master_at(admin: Admin, address: str, epoch: int) -> str:
    """Return the name of a member if it is the master of a later epoch, otherwise an empty text."""
    try:
        said = await admin.failover_status(address, timeout_s=_ASK_S)
    except (BrokerError, RemotingError):
        return ""
    return said.member.rpartition("#")[0] if said.state == MASTER and said.epoch > epoch else ""


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
