"""The ``cometmq`` command and the names of its subcommands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from cometmq import __version__
from cometmq.cli.contexts import CONTEXT_VARIABLE, tools_file
from cometmq.cli.failures import guarded
from cometmq.cli.lazy_group import LazyGroup
from cometmq.remoting.security import ACCESS_KEY_VARIABLE, CREDENTIALS_FILE_VARIABLE, SECRET_KEY_VARIABLE

COMMANDS: Final = {
    "serve": ("servers.serve", "Run a nameserver and brokers on this machine."),
    "namesrv": ("servers.namesrv", "Run a nameserver."),
    "proxy": ("servers.proxy", "Serve RocketMQ 5 clients in front of other brokers."),
    "broker": ("servers.broker", "Run a broker."),
    "backup": ("servers.backup", "Back up a broker's store while the broker runs, and restore it."),
    "console": ("admin.console", "Run the web console of a cluster."),
    "tls": ("servers.tls", "Create certificates for trying out TLS."),
    "produce": ("messages.produce", "Send messages from a file, from stdin or as a load."),
    "consume": ("messages.consume", "Receive messages, to a terminal or a pipe."),
    "topic": ("admin.topic", "List, create, change, describe and delete topics."),
    "group": ("admin.group", "List, create, change and describe consumer groups, show and reset their offsets."),
    "user": ("admin.user", "Create, change, list and delete users."),
    "acl": ("admin.acl", "Create, list and delete policies, and test what an account may do."),
    "quota": ("admin.quota", "Limit what accounts, client addresses and groups may use."),
    "audit": ("admin.audit", "Read a server's audit log: who did what, and what was denied."),
    "cluster": ("admin.cluster", "Show clusters and their brokers."),
    "message": ("messages.message", "Find stored messages by id, key or offset, and trace them."),
    "delay": ("messages.delay", "Show delayed messages that are not due yet."),
    "transaction": ("messages.transaction", "List transactions that are neither committed nor rolled back."),
    "dlq": ("messages.dlq", "List, read, export and resend dead letters."),
    "pipeline": ("jobs.pipeline", "Run Spark jobs over topics, archives and stores."),
    "metrics": ("admin.metrics", "Write a dashboard for Grafana and alert rules for Prometheus."),
    "top": ("admin.top", "Watch topics, groups and clients by rate and lag."),
    "bench": ("admin.bench", "Measure throughput and latency of a cluster."),
    "context": ("context", "Store named connections to clusters, and choose one."),
    "watch": ("watch", "Repeat a command and show its output."),
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "doctor": ("admin.doctor", "Check this machine and suggest fixes."),
}
"""Each command's module in ``cometmq.cli``, which defines ``command``, and its help text."""


@click.command(
    cls=LazyGroup,
    members=COMMANDS,
    package="cometmq.cli",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", message="CometMQ %(version)s")
@click.option("--context", help=f"Context to use; also from ${CONTEXT_VARIABLE}.")
def root(context: str | None) -> None:
    """CometMQ is Apache RocketMQ in Python: nameserver, broker, client and Spark pipeline.

    Start with `cometmq serve`, then `cometmq produce` and `cometmq consume` in another terminal.
    Exit codes: 0 done, 1 failed, 2 wrong use, 3 partly done.
    """


def adopt_tools_file() -> None:
    """Use the credentials in ``$ROCKETMQ_HOME/conf/tools.yml``, as mqadmin does, unless the environment sets
    credentials.

    Spark workers that this command starts also use them.
    """
    given = (CREDENTIALS_FILE_VARIABLE, ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)
    if not any(map(os.environ.get, given)) and (file := tools_file()) is not None:
        os.environ[CREDENTIALS_FILE_VARIABLE] = str(file)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and exit with the command's exit code."""
    adopt_tools_file()
    sys.exit(guarded(lambda: root.main(arguments, prog_name="cometmq", standalone_mode=False)))
