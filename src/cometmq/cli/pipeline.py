"""``cometmq pipeline``: Spark jobs over topics."""

from __future__ import annotations

import click

from cometmq.spark.archive_command import archive_command


@click.group("pipeline")
def command() -> None:
    """Run Spark jobs over topics."""


command.add_command(archive_command, "archive")
