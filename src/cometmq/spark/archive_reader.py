"""Reads an archive back: only files that a commit names; and makes the stored records of its rows again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.record import encode_record
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.columns import COLUMNS, DERIVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE_DDL: Final = ", ".join(f"{column.name} {column.type}" for column in COLUMNS if column.name not in DERIVED)
"""The columns of an archive's files."""


def read_archive(spark: SparkSession, directory: str | Path) -> DataFrame:
    """Return the messages of an archive as a DataFrame with every column of the source.

    It shows what was committed when it was called; later commits need another call.
    """
    log = ArchiveLog(directory)
    paths = [str(log.root.absolute() / file.path) for file in log.files()]
    if not paths:
        return spark.createDataFrame([], ARCHIVE_DDL)
    return spark.read.schema(ARCHIVE_DDL).parquet(*paths)


def record_of(row: Mapping[str, Any]) -> bytes:
    """The stored record of an archived message, byte for byte as its broker had it; ``row`` has every column."""
    return encode_record(
        topic=row["topic"],
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        body=bytes(row["body"] if row["storedBody"] is None else row["storedBody"]),
        properties_text=row["propertiesText"],
        flag=row["flag"],
        sys_flag=row["sysFlag"],
        born_timestamp=_milliseconds(row["bornTimestamp"]),
        born_host=encode_host(*parse_address(row["bornHost"])),
        store_timestamp=_milliseconds(row["storeTimestamp"]),
        store_host=encode_host(*parse_address(row["storeHost"])),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
    )


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
