"""``cometmq context``: manage named connections to clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cometmq.cli.connection import CONTEXT, confirm_deletion
from cometmq.cli.contexts import (
    CONTEXT_VARIABLE,
    NAMESRV_VARIABLE,
    NO_CONTEXT,
    Connection,
    Contexts,
    change_contexts,
    chosen_name,
    contexts_file,
    read_contexts,
)
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import FORMATS, Column, notify, output_option, show, show_one
from cometmq.client.route import namesrv_addresses

_COLUMNS: Final = (
    Column("current", ""),
    Column("name", "Context"),
    Column("nameservers", "Nameservers", prose=True),
    Column("credentials", "Credentials from", prose=True),
    Column("tls", "TLS"),
    Column("output", "Output"),
    Column("description", "Description", prose=True),
)
_file: Final = LocalPath(path_type=Path, dir_okay=False)


@click.group("context")
def command() -> None:
    """Manage named connections to clusters: addresses, TLS settings, and where credentials are stored.

    Options take precedence over the environment, and the environment over the current context. A context refers to the
    file or variable that contains a secret, but never contains the secret itself.
    """


@command.command("create")
@click.argument("name")
@click.option("-n", "--namesrv", required=True, metavar="HOST:PORT[;…]", help="Nameserver addresses.")
@click.option("--description", default="", help="Description of the context.")
@click.option("-o", "--output", type=click.Choice(FORMATS), help="Output format for commands that are run without -o.")
@click.option("--credentials-file", type=_file, help="File with accessKey and secretKey, in the format of tools.yml.")
@click.option("--access-key-env", metavar="VARIABLE", help="Environment variable that contains the access key.")
@click.option("--secret-key-env", metavar="VARIABLE", help="Environment variable that contains the secret key.")
@click.option(
    "--security-token-env",
    metavar="VARIABLE",
    help="Environment variable that contains the security token of a temporary key.",
)
@click.option("--tls", is_flag=True, help="Use TLS for connections.")
@click.option("--tls-trust-cert", type=_file, help="PEM file with the certificate authorities to trust.")
@click.option("--tls-cert", type=_file, help="PEM file with this client's certificate.")
@click.option("--tls-key", type=_file, help="PEM file with the private key for the client's certificate.")
@click.option(
    "--tls-key-password-env", metavar="VARIABLE", help="Environment variable that contains the private key's password."
)
@click.option("--no-tls-auth-server", is_flag=True, help="Do not verify the servers' certificates.")
@click.option("--no-tls-check-host", is_flag=True, help="Accept certificates that were issued for another host.")
@click.option("--replace", is_flag=True, help="Replace an existing context with this name.")
@click.option("--use", "use_it", is_flag=True, help="Make this the current context.")
def create(name: str, replace: bool, use_it: bool, **settings: Any) -> None:
    """Create a context."""
    connection = _connection(settings)

    def change(contexts: Contexts) -> Contexts:
        more = contexts.with_context(name, connection, replace=replace)
        return msgspec.structs.replace(more, current=name) if use_it else more

    change_contexts(change)
    notify(f"Stored context {name} in {contexts_file()}.")
    if use_it:
        _tell_use(name)
    else:
        notify(f"Use it with cometmq context use {name}, or for one command with --context {name}.")


@command.command("use")
@click.argument("name", type=CONTEXT)
def use(name: str) -> None:
    """Select the current context, which future commands use. ``none`` selects no context."""
    if name == NO_CONTEXT:
        change_contexts(lambda contexts: msgspec.structs.replace(contexts, current=""))
        notify("No context is in use.")
        return

    def change(contexts: Contexts) -> Contexts:
        contexts.named(name)
        return msgspec.structs.replace(contexts, current=name)

    change_contexts(change)
    _tell_use(name)


@command.command("list")
@output_option
def list_contexts(output: str) -> None:
    """List all contexts. The current context is marked with *."""
    contexts = read_contexts()
    name = chosen_name(None, contexts)
    rows = [_row(known, found, current=known == name) for known, found in contexts.contexts.items()]
    show(rows, _COLUMNS, output, title="Contexts")


@command.command("show")
@click.argument("name", type=CONTEXT, required=False)
@output_option
def show_context(name: str | None, output: str) -> None:
    """Show a context. The default is the current context."""
    contexts = read_contexts()
    name = name or chosen_name(None, contexts)
    if name is None:
        raise WrongUseError("no context is in use", next_step="give a name, or choose one with cometmq context use")
    connection = contexts.named(name)
    show_one({"name": name, **msgspec.to_builtins(connection)}, output, title=f"Context {name}")


@command.command("delete")
@click.argument("name", type=CONTEXT)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, yes: bool) -> None:
    """Delete a context."""
    contexts = read_contexts()
    contexts.named(name)
    if not yes:
        was_used = contexts.current == name
        confirm_deletion(f"context {name}", "leaves no context in use" if was_used else "keeps all other contexts")
    change_contexts(lambda now: now.without(name))
    notify(f"Deleted context {name}.")


def _connection(settings: dict[str, Any]) -> Connection:
    """Return the connection that the options of ``create`` describe.

    :raises WrongUseError: the options contradict each other, or a file does not exist.
    """
    namesrv = settings.pop("namesrv")
    try:
        namesrv_addresses(namesrv)
    except ValueError as error:
        raise WrongUseError(f"-n {namesrv}: {error}") from None
    auth_server, check_host = not settings.pop("no_tls_auth_server"), not settings.pop("no_tls_check_host")
    values = {name: value for name, value in settings.items() if value}
    for name, value in values.items():
        if isinstance(value, Path):
            if not value.is_file():
                raise WrongUseError(f"--{name.replace('_', '-')} {value}: file not found")
            values[name] = str(value.absolute())
    if ("access_key_env" in values) != ("secret_key_env" in values):
        raise WrongUseError("--access-key-env and --secret-key-env must be used together")
    if "credentials_file" in values and "access_key_env" in values:
        raise WrongUseError("--credentials-file and --access-key-env cannot be used together")
    if not settings["tls"] and (any(name.startswith("tls_") for name in values) or not (auth_server and check_host)):
        raise WrongUseError("the TLS options need --tls")
    return Connection(namesrv, tls_auth_server=auth_server, tls_check_host=check_host, **values)


def _tell_use(name: str) -> None:
    notify(f"Context {name} is in use.")
    for variable in (CONTEXT_VARIABLE, NAMESRV_VARIABLE):
        if os.environ.get(variable):
            notify(f"${variable} is set and takes precedence: unset {variable}")


def _row(name: str, connection: Connection, *, current: bool) -> dict[str, Any]:
    variables = f"${connection.access_key_env}, ${connection.secret_key_env}"
    return {
        "current": "*" if current else "",
        "name": name,
        "nameservers": connection.nameservers,
        "credentials": connection.credentials_file or (variables if connection.access_key_env else ""),
        "tls": connection.tls,
        "output": connection.output or "table",
        "description": connection.description,
    }
