"""``cometmq pipeline``: Spark jobs over topics, archives and stores."""

from __future__ import annotations

import logging
from typing import Final

import click

from cometmq.cli.lazy_group import LazyGroup

JOBS: Final = {
    "archive": "Archive topics, or a store's files, into Parquet, Delta Lake or Iceberg, exactly once.",
    "replay": "Send messages of an archive to a topic, in order, and go on where it stopped.",
    "audit": "Compare what was produced, stored, consumed and archived.",
    "key-index": "Index an archive by key, and find messages that no broker has any more.",
    "mask": "Copy messages with fields masked, hashed or encrypted; erase by dropping keys.",
    "trace": "Show how long messages took to each consumer, by the clients' message traces.",
    "delay": "Show how exact delayed messages were, what waits until when, and what is stuck.",
    "skew": "Show hot keys, uneven queues, and how many queues topics should have.",
    "dlq": "Show why messages die: count dead letters, and send them again.",
    "rebuild": "Make a store's consume queues and index anew from its log.",
}
"""Each is the attribute ``command`` of a module of :mod:`cometmq.cli.jobs`."""


class JobGroup(LazyGroup):
    """Commands that run Spark: what happens around a job is told in sentences, too."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the job; says on stderr when Spark is being started, and what an interruption means."""
        starting = logging.getLogger("cometmq.spark.environment")
        starting.setLevel(logging.INFO)
        starting.addHandler(_TELLING)
        starting.propagate = False
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # JVM frames by the hundred, before our sentence
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            told = "interrupted; a job that writes has kept what it committed: the same command goes on from there"
            click.echo(f"cometmq: {told}", err=True)
            raise


class _Telling(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.getMessage()} …", err=True)


_TELLING: Final = _Telling()


@click.group("pipeline", cls=JobGroup, members=JOBS, package="cometmq.cli.jobs")
def command() -> None:
    """Run Spark jobs over topics, archives and stores."""
