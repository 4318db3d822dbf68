"""The ``cometmq`` command and the names of its subcommands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from cometmq import __version__
from cometmq.cli.failures import guarded
from cometmq.cli.lazy_group import LazyGroup
from cometmq.cli.tools_file import adopt_tools_file

COMMANDS: Final = {
    "serve": "Run a nameserver and brokers on this machine.",
    "namesrv": "Run a nameserver.",
    "broker": "Run a broker.",
    "produce": "Send messages from a file, from stdin or as a load.",
    "consume": "Receive messages, to a terminal or a pipe.",
    "topic": "List, create, describe and delete topics.",
    "group": "List and describe consumer groups, show and reset their offsets.",
    "cluster": "Show clusters and their brokers.",
    "message": "Find stored messages by id, key or offset, and show their way.",
    "delay": "Show what waits for its time.",
    "transaction": "List transactions that are neither committed nor rolled back.",
    "dlq": "List, read, export and send again what groups failed on too often.",
    "pipeline": "Run Spark jobs over topics, archives and stores.",
    "demo": "Show the whole way of a message, with a crash in the middle.",
    "doctor": "Check this machine and say what to do.",
}
"""Each is the attribute ``command`` of the module ``cometmq.cli.<name>``."""


@click.command(
    cls=LazyGroup,
    members=COMMANDS,
    package="cometmq.cli",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", message="CometMQ %(version)s")
def root() -> None:
    """CometMQ is Apache RocketMQ in Python: nameserver, broker, client and Spark pipeline.

    Start with `cometmq serve`, then `cometmq produce` and `cometmq consume` in another terminal.
    Exit codes: 0 done, 1 failed, 2 wrong use, 3 partly done.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    adopt_tools_file()
    sys.exit(guarded(lambda: root.main(arguments, prog_name="cometmq", standalone_mode=False)))
