"""The ``cometmq`` command: knows the names of the subcommands and loads the one that is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from cometmq import __version__
from cometmq.cli.failures import ReaderGoneError, guarded

COMMANDS: Final = {
    "serve": "Run a nameserver and brokers on this machine.",
    "namesrv": "Run a nameserver.",
    "broker": "Run a broker.",
    "produce": "Send messages from a file, from stdin or as a load.",
    "consume": "Receive messages, to a terminal or a pipe.",
    "topic": "List, create, describe and delete topics.",
    "group": "List and describe consumer groups, show and reset their offsets.",
    "message": "Find stored messages by id, key or offset.",
    "cluster": "Show clusters and their brokers.",
    "pipeline": "Run Spark jobs over topics.",
    "demo": "Show the whole way of a message, with a crash in the middle.",
    "doctor": "Check this machine and say what to do.",
}
"""Each is the attribute ``command`` of the module ``cometmq.cli.<name>``."""


class Commands(click.Group):
    """A group whose members are imported when they are called, so that ``serve`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of daily use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; an unknown name is answered with the nearest one."""
        if cmd_name in COMMANDS:
            command: click.Command = importlib.import_module(f"cometmq.cli.{cmd_name}").command
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with a suggestion."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from cometmq.options import nearest

            near = nearest(args[0], COMMANDS)
            hint = f"Did you mean {near}?" if near else "See cometmq --help."
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
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", message="CometMQ %(version)s")
def root() -> None:
    """CometMQ is Apache RocketMQ in Python: nameserver, broker, client and Spark pipeline.

    Start with `cometmq serve`, then `cometmq produce` and `cometmq consume` in another terminal.
    Exit codes: 0 done, 1 failed, 2 wrong use, 3 partly done.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(guarded(lambda: root.main(arguments, prog_name="cometmq", standalone_mode=False)))
