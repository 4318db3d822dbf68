"""A command group that knows the names of its members and loads the one that is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from cometmq.cli.failures import ReaderGoneError


class LazyGroup(click.Group):
    """A group whose members are imported when they are called, so that ``serve`` starts fast.

    :param members: what each is for, by its name; it is the attribute ``command`` of the module of that name in
        ``package``, with ``_`` for ``-``.
    """

    def __init__(self, *args: Any, members: Mapping[str, str], package: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._members = members
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of daily use."""
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; an unknown name is answered with the nearest one."""
        if cmd_name in self._members:
            command: click.Command = _module(self._package, cmd_name).command
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with a suggestion."""
        if args and args[0] not in self._members and not args[0].startswith("-"):
            from cometmq.options import nearest

            near = nearest(args[0], self._members)
            hint = f"Did you mean {near}?" if near else f"See {ctx.command_path} --help."
            raise click.UsageError(f"there is no command {args[0]}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader of stdout that has gone is told apart from other failures."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGoneError from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._members.items()))


def _module(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")
