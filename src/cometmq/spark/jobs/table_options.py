"""The options for the format of an archive's table."""

from __future__ import annotations

from cometmq.options.forms import one_of
from cometmq.spark.archives.table import FORMATS, ICEBERG, TableFormat
from cometmq.spark.jobs.job import job_options, option


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

    @classmethod
    def of_command(cls, name: str | None, catalog: str | None, table: str | None) -> TableFormat | None:
        """Return the format that a command's options describe, or None if they are not set."""
        return TableFormat(name or ICEBERG, catalog, table) if name or catalog or table else None
