"""A command group that imports only the command that is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from cometmq.cli.failures import PARTLY, PARTLY_DONE, ReaderGoneError


class LazyGroup(click.Group):
    """A command group that imports a command only when the command is called, so that ``serve`` starts fast.

    :param members: each command's module in ``package``, which defines ``command``, and its help text.
    """

    def __init__(self, *args: Any, members: Mapping[str, tuple[str, str]], package: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._members = members
        self._package = package

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the commands, most frequently used first."""
        return list(self._members)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None if no command has this name."""
        if cmd_name in self._members:
            module, _ = self._members[cmd_name]
            command: click.Command = importlib.import_module(f"{self._package}.{module}").command
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If it does not exist, fail and suggest the nearest name."""
        if args and args[0] not in self._members and not args[0].startswith("-"):
            from cometmq.options import nearest

            near = nearest(args[0], self._members)
            hint = f"Did you mean {near}?" if near else f"See {ctx.command_path} --help."
            raise click.UsageError(f"unknown command {args[0]}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. If it shows only part of the result, its exit code is 3.

        :raises ReaderGoneError: the process that reads stdout has ended.
        """
        try:
            result: object = super().invoke(ctx)
            return PARTLY_DONE if not result and ctx.meta.get(PARTLY) else result
        except BrokenPipeError:
            raise ReaderGoneError from None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._members.items()])
