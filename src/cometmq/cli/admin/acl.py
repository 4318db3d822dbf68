"""``cometmq acl``: manage ACL 2.0 policies, and test what an account may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from cometmq.auth.plain_files import PlainFiles
from cometmq.auth.policies import AclInfo, EntryInfo, PolicyInfo, read_policies
from cometmq.cli.admin.accounts import administer_accounts
from cometmq.cli.admin.changes import yes_option
from cometmq.cli.admin.user import change, server_option
from cometmq.cli.connection import confirm_deletion, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import Column, output_option, show, show_one
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.decisions import Decision, decision_of, need_of
from cometmq.message.hosts import stored_ip
from cometmq.remoting.permissions import Action

_ACTIONS: Final = [action.value for action in Action]
_COLUMNS: Final = (
    Column("user", "User"),
    Column("policy", "Policy"),
    Column("resource", "Resource"),
    Column("actions", "Actions", prose=True),
    Column("from", "From", prose=True),
    Column("decision", "Decision"),
)


@click.group("acl")
def command() -> None:
    """Create, list and delete policies, and test what an account may do."""


@command.command("create")
@click.argument("user")
@click.argument("resources", nargs=-1, required=True, metavar="RESOURCE...")
@click.option(
    "-a",
    "--action",
    "actions",
    multiple=True,
    required=True,
    type=click.Choice([*_ACTIONS, "All"], case_sensitive=False),
    help="Action to allow or deny. May be repeated.",
)
@click.option(
    "--source-ip",
    "sources",
    multiple=True,
    metavar="ADDRESS",
    help="Source address or network to which the policy applies. May be repeated.",
)
@click.option("--deny", is_flag=True, help="Deny the actions instead of allowing them.")
@click.option(
    "--default", "is_default", is_flag=True, help="Create a default policy, which applies if no custom policy matches."
)
@server_option
@dry_run_option
@namesrv_option
def create(
    user: str,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    sources: tuple[str, ...],
    deny: bool,
    is_default: bool,
    server: str | None,
    namesrv: str,
) -> None:
    """Allow or deny actions by a user on resources.

    RESOURCE is for example Topic:Orders, Group:bill*, Topic:* or Cluster:*. A single * stands for all resources.
    """
    decision = "Deny" if deny else "Allow"
    entries = [EntryInfo(resource, list(actions), list(sources), decision) for resource in resources]
    policies = [PolicyInfo("Default" if is_default else "Custom", entries)]
    read_policies(policies)

    async def work(admin: Admin) -> None:
        if is_dry_run():
            show_only(f"the policies of {user}", await _new_entries(admin, user, entries, server))
            return
        await admin.put_policies(user, policies, address=server)

    change(namesrv, work, f"{decision} {', '.join(actions)} on {', '.join(resources)} for {user}.")


@command.command("list")
@click.option("--user", default="", help="List only users whose names contain this text.")
@click.option("--resource", default="", help="List only resources that contain this text.")
@server_option
@namesrv_option
@output_option
def list_policies(user: str, resource: str, server: str | None, namesrv: str, output: str) -> None:
    """List policies."""

    async def work(admin: Admin) -> list[AclInfo]:
        return await admin.policies(user, resource, address=server)

    rows = [row for info in administer_accounts(namesrv, work) for row in _rows(info)]
    show(rows, _COLUMNS, output, title="Policies")


@command.command("show")
@click.argument("user")
@server_option
@namesrv_option
@output_option
def show_policies(user: str, server: str | None, namesrv: str, output: str) -> None:
    """Show one user's policies."""

    async def work(admin: Admin) -> AclInfo:
        return await admin.policies_of(user, address=server)

    show(_rows(administer_accounts(namesrv, work)), _COLUMNS, output, title=f"Policies of {user}")


@command.command("delete")
@click.argument("user")
@click.argument("resource", required=False)
@click.option("--default", "is_default", is_flag=True, help="Delete the default policy instead of the custom policy.")
@yes_option
@server_option
@dry_run_option
@namesrv_option
def delete(user: str, resource: str | None, is_default: bool, yes: bool, server: str | None, namesrv: str) -> None:
    """Delete one or all of a user's policies."""
    if not yes and resource is None:
        confirm_deletion(f"all policies of {user}", "removes every permission from them")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            rows = _rows(await admin.policies_of(user, address=server))
            lost = [
                Change(server or "all", row["resource"], f"{row['decision']} {row['actions']}", None)
                for row in rows
                if resource in (None, row["resource"])
            ]
            show_only(f"the policies of {user}", lost)
            return
        await admin.delete_policies(user, resource, "Default" if is_default else "Custom", address=server)

    change(namesrv, work, f"{resource or 'All policies'} of {user}: deleted.")


@command.command("test")
@click.argument("user")
@click.argument("action", type=click.Choice(_ACTIONS, case_sensitive=False))
@click.argument("resource")
@click.option("--source-ip", "source", default="127.0.0.1", show_default=True, help="Source address of the request.")
@click.option(
    "--plain", type=LocalPath(path_type=Path), help="Test against the plain_acl.yml in this directory instead."
)
@click.option("--cluster", default="DefaultCluster", show_default=True, help="Name of the cluster.")
@server_option
@namesrv_option
@output_option
def test(
    user: str,
    action: str,
    resource: str,
    source: str,
    plain: Path | None,
    cluster: str,
    server: str | None,
    namesrv: str,
    output: str,
) -> None:
    """Test whether a user may perform an action, and show the reason.

    The exit code is 1 if USER may not perform ACTION on RESOURCE.
    """
    try:
        need = need_of(action, resource)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from None
    if stored_ip(source) is None:
        raise click.BadParameter(f"{source} is not an IP address", param_hint="--source-ip")
    if plain is not None:
        denied = PlainFiles(plain).account(user, source, 0).refusal(need, 0)
        decision = Decision(denied is None, "plain_acl.yml allows it" if denied is None else denied.message)
    else:

        async def work(admin: Admin) -> Decision:
            return await decision_of(admin, user, need, source, cluster=cluster, address=server)

        decision = administer_accounts(namesrv, work)
    answer = {
        "user": user,
        "action": action,
        "resource": resource,
        "from": source,
        "allowed": decision.allowed,
        "why": decision.why,
    }
    show_one(answer, output)
    if not decision.allowed:
        raise SystemExit(1)


async def _new_entries(admin: Admin, user: str, entries: list[EntryInfo], server: str | None) -> list[Change]:
    """Return the changes that new policy entries make to a user's policies."""
    rows = _rows(await admin.policies_of(user, address=server))
    had = {row["resource"]: f"{row['decision']} {row['actions']}" for row in rows}
    return [
        Change(
            server or "all",
            entry.resource or "",
            had.get(entry.resource),
            f"{entry.decision} {', '.join(entry.actions or ())}",
        )
        for entry in entries
    ]


def _rows(info: AclInfo) -> list[dict[str, Any]]:
    return [
        {
            "user": (info.subject or "").removeprefix("User:"),
            "policy": policy.policy_type,
            "resource": entry.resource,
            "actions": ", ".join(entry.actions or ()),
            "from": ", ".join(entry.source_ips or ()),
            "decision": entry.decision,
        }
        for policy in info.policies or ()
        for entry in policy.entries or ()
    ]
