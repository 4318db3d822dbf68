"""The options that say how an archive that is not there yet keeps its table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cometmq.spark.archive_table import FORMATS, ICEBERG, TableFormat

F = TypeVar("F", bound=Callable[..., Any])


def table_options(command: F) -> F:
    """Give a command these options; it gets what they say as ``table_format``, ``None`` where they say nothing."""
    options = (
        click.option(
            "--format",
            "format_name",
            type=click.Choice(FORMATS),
            help="Format of an archive that is not there yet.  [default: parquet]",
        ),
        click.option("--catalog", help="With --format iceberg: a catalog that pyiceberg is configured for."),
        click.option(
            "--table", help="With --format iceberg: namespace and name of the table.  [default: cometmq.archive]"
        ),
    )

    @functools.wraps(command)
    def packed(*args: Any, format_name: str | None, catalog: str | None, table: str | None, **named: Any) -> Any:
        wanted = None
        if format_name or catalog or table:
            wanted = TableFormat(format_name or ICEBERG, catalog, table)
        return command(*args, table_format=wanted, **named)

    for option in reversed(options):
        packed = option(packed)
    return packed  # type: ignore[return-value]
