"""``cometmq pipeline``: Spark jobs over topics, archives and stores."""

from __future__ import annotations

from typing import Final

import click

from cometmq.cli.lazy_group import LazyGroup

JOBS: Final = {
    "archive": "Archive topics, or a store's files, into Parquet, Delta Lake or Iceberg, exactly once.",
    "rebuild": "Make a store's consume queues and index anew from its log.",
    "replay": "Send messages of an archive to a topic, in order, and go on where it stopped.",
    "mask": "Copy messages with fields masked, hashed or encrypted; erase by dropping keys.",
    "audit": "Compare what was produced, stored, consumed and archived.",
    "key-index": "Index an archive by key, and find messages that no broker has any more.",
    "trace": "How long messages took to each consumer, by the clients' message traces.",
    "delay": "How exact delayed messages were, what waits until when, and what is stuck.",
    "skew": "Hot keys, uneven queues, and how many queues topics should have.",
    "dlq": "Why messages die: dead letters counted, and sent again.",
}
"""Each is the attribute ``command`` of a module of :mod:`cometmq.cli.jobs`."""


@click.group("pipeline", cls=LazyGroup, members=JOBS, package="cometmq.cli.jobs")
def command() -> None:
    """Run Spark jobs over topics, archives and stores."""
