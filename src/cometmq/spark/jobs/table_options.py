"""The options for the table of a new archive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cometmq.options.forms import one_of
from cometmq.spark.archives.table import DEFAULT_PARTITION, FORMATS, ICEBERG, TableFormat
from cometmq.spark.jobs.job import CATALOG_SETTINGS, job_options, option


@job_options
class TableOptions(TableFormat):
    """The command-line options for the format of an archive's table."""

    name: str = option(
        "Format for a new archive.  [default: parquet]", "--format", default=FORMATS[0], form=one_of(*FORMATS)
    )
    catalog: str | None = option("Catalog from pyiceberg's configuration (with --format iceberg).", default=None)
    table: str | None = option(
        "Namespace and name of the table (with --format iceberg).  [default: cometmq.archive]", default=None
    )
    catalog_options: Mapping[str, str] | None = option(
        "Property of the catalog, such as type, uri or warehouse, but no secret. May be repeated.",
        "--catalog-option",
        default=None,
        form=CATALOG_SETTINGS,
        secret=True,
    )
    partition: str = option(
        "Partitions of a new Iceberg table: topic, queueId, and hour, day, month or year, by commas. "
        f"[default: {DEFAULT_PARTITION}]",
        default=DEFAULT_PARTITION,
    )
    take_over: bool = option("Continue in an existing Iceberg table that no archive job has created.", default=False)

    @classmethod
    def of_command(cls, name: str | None, catalog: str | None, table: str | None, **more: Any) -> TableFormat | None:
        """Return the format that a command's options describe, or None if they are not set."""
        given = {name: value for name, value in more.items() if value}
        return TableFormat(name or ICEBERG, catalog, table, **given) if name or catalog or table or given else None
