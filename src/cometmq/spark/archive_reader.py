"""Reads an archive back: only files that a commit names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)


def read_archive(spark: SparkSession, directory: str | Path) -> DataFrame:
    """Return the messages of an archive as a DataFrame with every column of the source.

    It shows what was committed when it was called; later commits need another call.
    """
    log = ArchiveLog(directory)
    paths = [str(log.root.absolute() / file.path) for file in log.files()]
    if not paths:
        return spark.createDataFrame([], _SCHEMA)
    return spark.read.schema(_SCHEMA).parquet(*paths)
