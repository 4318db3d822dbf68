"""``cometmq user``: manage ACL 2.0 users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click

from cometmq.auth.user_admin import UserInfo
from cometmq.cli.admin.accounts import administer_accounts
from cometmq.cli.admin.changes import partly_done, yes_option
from cometmq.cli.connection import confirm_deletion, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import Column, notify, output_option, show, show_one
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.errors import CometMQError, reason_of

_COLUMNS: Final = (Column("name", "User"), Column("type", "Type"), Column("status", "Status"))

server_option = click.option(
    "--server",
    metavar="HOST:PORT",
    help="Use only this server. By default, changes are sent to all servers that support users, and queries to one "
    "broker.",
)
password_option = click.option(
    "--password-file", type=LocalPath(path_type=Path), help="File with the password.  [default: ask for it]"
)


def change(namesrv: str, work: Callable[[Admin], Awaitable[None]], done: str) -> None:
    """Change users or policies with ``work``, and print the sentence ``done`` at the end.

    :raises PartlyDoneError: only some servers made the change.
    """
    with partly_done():
        administer_accounts(namesrv, work)
    if not is_dry_run():
        notify(done)


@click.group("user")
def command() -> None:
    """Create, change, list and delete the users of servers that have authenticationEnabled=true."""


@command.command("create")
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="Create a super user, who is allowed to do everything.")
@password_option
@server_option
@dry_run_option
@namesrv_option
def create(name: str, is_super: bool, password_file: Path | None, server: str | None, namesrv: str) -> None:
    """Create a user.

    The name is the access key, and the password is the secret key.
    """
    user = UserInfo(name, _password(password_file), "Super" if is_super else "Normal")

    async def work(admin: Admin) -> None:
        if show_only(f"user {name}", [Change(server or "all", f"user {name}", None, user.user_type)]):
            return
        await admin.create_user(user, address=server)

    change(namesrv, work, f"Created user {name}.")


@command.command("update")
@click.argument("name")
@click.option("--password", "new_password", is_flag=True, help="Ask for a new password.")
@password_option
@click.option(
    "--type", "kind", type=click.Choice(["Normal", "Super"], case_sensitive=False), help="New type of the user."
)
@click.option("--status", type=click.Choice(["enable", "disable"]), help="New status of the user.")
@server_option
@dry_run_option
@namesrv_option
def update(
    name: str,
    new_password: bool,
    password_file: Path | None,
    kind: str | None,
    status: str | None,
    server: str | None,
    namesrv: str,
) -> None:
    """Change a user's password, type or status."""
    password = _password(password_file) if new_password or password_file else None
    if not (password or kind or status):
        raise click.UsageError("give a change: --password, --password-file, --type or --status")
    user = UserInfo(name, password, kind, status)

    async def work(admin: Admin) -> None:
        if is_dry_run():
            show_only(f"user {name}", _differences(server, await admin.user(name, address=server), user))
            return
        await admin.update_user(user, address=server)

    change(namesrv, work, f"Changed user {name}.")


@command.command("list")
@click.argument("text", default="")
@server_option
@namesrv_option
@output_option
def list_users(text: str, server: str | None, namesrv: str, output: str) -> None:
    """List the users whose names contain TEXT."""

    async def work(admin: Admin) -> list[UserInfo]:
        return await admin.users(text, address=server)

    show([_row(user) for user in administer_accounts(namesrv, work)], _COLUMNS, output, title="Users")


@command.command("show")
@click.argument("name")
@server_option
@namesrv_option
@output_option
def show_user(name: str, server: str | None, namesrv: str, output: str) -> None:
    """Show one user."""

    async def work(admin: Admin) -> UserInfo:
        return await admin.user(name, address=server)

    show_one(_row(administer_accounts(namesrv, work)), output)


@command.command("delete")
@click.argument("name")
@yes_option
@server_option
@dry_run_option
@namesrv_option
def delete(name: str, yes: bool, server: str | None, namesrv: str) -> None:
    """Delete a user and their policies."""
    if not yes:
        confirm_deletion(f"user {name}", "deletes their policies")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            await admin.user(name, address=server)
            entries = [
                entry
                for policy in (await admin.policies_of(name, address=server)).policies or ()
                for entry in policy.entries or ()
            ]
            had = f"policy entries: {len(entries)}"
            show_only(f"user {name}", [Change(server or "all", f"user {name}", had, None)])
            return
        await admin.delete_user(name, address=server)

    change(namesrv, work, f"Deleted user {name}.")


def _differences(server: str | None, old: UserInfo, new: UserInfo) -> list[Change]:
    pairs = (("type", old.user_type, new.user_type), ("status", old.user_status, new.user_status))
    changes = [Change(server or "all", name, had, has) for name, had, has in pairs if has is not None and had != has]
    if new.password is not None:
        changes.append(Change(server or "all", "password", "(secret)", "(new)"))
    return changes


def _row(user: UserInfo) -> dict[str, Any]:
    return {"name": user.username, "type": user.user_type, "status": user.user_status}


def _password(file: Path | None) -> str:
    if file is None:
        text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return text
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise CometMQError(f"the password in {file} cannot be read: {why}") from None
