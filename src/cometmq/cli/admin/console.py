"""``cometmq console``: run the web console, and manage its own users."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

import click

from cometmq.cli.connection import namesrv_alone
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.cli.servers.console_options import audit_log_option, console_url_option, reports_option
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.process import (
    Stopping,
    announce,
    default_data,
    run_server,
    stop_when_stdin_ends,
    until_stdin_ends_option,
)
from cometmq.console.options import ConsoleOptions
from cometmq.console.origins import Origin
from cometmq.errors import SERVER, CometMQError, reason_of, require
from cometmq.message.ports import CONSOLE_PORT

_USERS: Final = (Column("name", "User"), Column("role", "Role"))

console_data_option = click.option(
    "--data",
    type=LocalPath(path_type=Path),
    default=lambda: default_data() / "console",
    show_default="console in the user's data directory",
    help="Directory for the console's users and its audit log.",
)


@click.group("console", invoke_without_command=True)
@namesrv_alone
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=CONSOLE_PORT, show_default=True, help="Port to listen on."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 requires accounts.",
)
@click.option("--allow-changes", is_flag=True, help="Allow visitors without an account to make changes.")
@click.option("--name", "names", multiple=True, help="Additional host name for the console.")
@console_url_option("--url")
@click.option("--certificate", type=LocalPath(path_type=Path), help="PEM file with the certificate for HTTPS.")
@click.option("--key", type=LocalPath(path_type=Path), help="PEM file with the certificate's private key.")
@reports_option
@audit_log_option
@console_data_option
@click.option(
    "--descriptor", type=int, hidden=True, help="Descriptor of a listening socket, used instead of host and port."
)
@until_stdin_ends_option
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    namesrv: str,
    port: int,
    host: str,
    allow_changes: bool,
    names: tuple[str, ...],
    urls: tuple[Origin, ...],
    certificate: Path | None,
    key: Path | None,
    reports: Path | None,
    audit_logs: tuple[Path, ...],
    data: Path,
    descriptor: int | None,
    until_stdin_ends: bool,
) -> None:
    """Run the web console for a CometMQ or Apache RocketMQ cluster.

    Unless --allow-changes is given, visitors must log in with an operator account to make changes. If the cluster uses
    access control, the console reads its credentials from the environment, as all commands do.
    """
    require("the console", SERVER, "starlette", "uvicorn", "jinja2", "python_multipart", "argon2")
    if ctx.invoked_subcommand is not None:
        return
    if (certificate is None) != (key is None):
        raise WrongUseError("--certificate and --key must be used together")

    async def main(stopping: Stopping) -> None:
        from cometmq.console.server import ConsoleServer
        from cometmq.remoting.security import Security

        if until_stdin_ends:
            stop_when_stdin_ends(stopping)
        options = ConsoleOptions(
            namesrv=namesrv,
            data=data,
            host=host,
            port=port,
            allow_changes=allow_changes,
            security=Security.from_environment(),
            names=names,
            urls=urls,
            certificate=certificate,
            key=key,
            reports=reports,
            audit_logs=audit_logs,
        )
        server = ConsoleServer(options, listening=None if descriptor is None else socket.socket(fileno=descriptor))
        await server.start()
        tune_memory()
        try:
            announce(f"CometMQ console ready: {server.url}, nameserver {namesrv}")
            await stopping.wait()
        finally:
            await server.stop()

    run_server(main)


@command.group("user")
def user() -> None:
    """Create, list and remove the console's own users."""


@user.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator"]),
    default="viewer",
    show_default=True,
    help="Role of the user: a viewer can only read, and an operator can also make changes.",
)
@click.option("--password-file", type=LocalPath(path_type=Path), help="File with the password.  [default: ask for it]")
@console_data_option
def add(name: str, role: str, password_file: Path | None, data: Path) -> None:
    """Create a user, or change a user's password and role."""
    from cometmq.console.security.passwords import ConsoleUsers, Role

    _users(data, ConsoleUsers).put(name, Role(role), _password(password_file))
    notify(f"User {name} of the console is a{'n' if role == 'operator' else ''} {role}.")


@user.command("list")
@console_data_option
@output_option
def list_users(data: Path, output: str) -> None:
    """List the users of the console."""
    from cometmq.console.security.passwords import ConsoleUsers

    users = _users(data, ConsoleUsers).all()
    show([{"name": name, "role": str(users[name].role)} for name in sorted(users)], _USERS, output, title="Users")


@user.command("remove")
@click.argument("name")
@console_data_option
def remove(name: str, data: Path) -> None:
    """Remove a user of the console."""
    from cometmq.console.security.passwords import ConsoleUsers

    _users(data, ConsoleUsers).remove(name)
    notify(f"Removed user {name} of the console.")


def _users(data: Path, kind: Any) -> Any:
    return kind(ConsoleOptions(namesrv="", data=data).users_file)


def _password(file: Path | None) -> str:
    if file is None:
        text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return text
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise CometMQError(f"the password in {file} cannot be read: {why}") from None
