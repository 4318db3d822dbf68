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
    "proxy": ("servers.proxy", "Run a proxy that connects RocketMQ 5 clients to brokers."),
    "broker": ("servers.broker", "Run a broker."),
    "backup": ("servers.backup", "Back up a broker's store while the broker runs, and restore it."),
    "console": ("admin.console", "Run the web console for a cluster."),
    "tls": ("servers.tls", "Create TLS certificates for testing."),
    "produce": ("messages.produce", "Send messages from files or stdin, or generate a load."),
    "consume": ("messages.consume", "Receive messages and write them to stdout."),
    "topic": ("admin.topic", "List, create, change, describe and delete topics."),
    "group": ("admin.group", "List, create, change and describe consumer groups, show and reset their offsets."),
    "user": ("admin.user", "Create, change, list and delete users."),
    "acl": ("admin.acl", "Create, list and delete policies, and test what an account may do."),
    "quota": ("admin.quota", "Manage quotas for accounts, client addresses and groups."),
    "audit": ("admin.audit", "Read a server's audit log: who did what, and what was denied."),
    "cluster": ("admin.cluster", "Show clusters and their brokers."),
    "failover": ("admin.failover", "Show sets that elect their master, hand over, and force an election."),
    "message": ("messages.message", "Find stored messages, trace them, and explain why they are not consumed."),
    "delay": ("messages.delay", "Show delayed messages that are not due yet."),
    "transaction": ("messages.transaction", "List transactions that are neither committed nor rolled back."),
    "dlq": ("messages.dlq", "List, read, export and resend dead letters."),
    "pipeline": ("jobs.pipeline", "Run Spark jobs on topics, archives and stores."),
    "metrics": ("admin.metrics", "Write a Grafana dashboard and Prometheus alert rules."),
    "top": ("admin.top", "Watch the rate and lag of topics, groups and clients."),
    "bench": ("admin.bench", "Measure a cluster's throughput and latency."),
    "mcp": ("mcp", "Serve a cluster's tools to agents over MCP."),
    "context": ("context", "Manage named connections to clusters."),
    "watch": ("watch", "Run a command repeatedly and show its output."),
    "completion": ("completion", "Print the completion script for bash, zsh or fish."),
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
@click.option("--context", help=f"Context to use; also read from ${CONTEXT_VARIABLE}.")
def root(context: str | None) -> None:
    """CometMQ is Apache RocketMQ in Python: nameserver, broker, client and Spark pipeline.

    Start with `cometmq serve`, then run `cometmq produce` and `cometmq consume` in another terminal. Exit codes: 0
    success, 1 failure, 2 usage error, 3 partial success.
    """


def adopt_tools_file() -> None:
    """Use the credentials in ``$ROCKETMQ_HOME/conf/tools.yml``, as mqadmin does, unless the environment contains
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
