"""Reads an archive of any format back: what its table names; and makes the stored records of its rows again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.record import encode_record
from cometmq.spark.archive_commit import DataFile
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.columns import ARCHIVE_DDL, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_archive(spark: SparkSession, directory: str | Path) -> DataFrame:
    """Return the messages of an archive, whatever its format, as a DataFrame with every column of the source.

    It shows what was committed when it was called; later commits need another call.

    :raises ArchiveError: the package of the archive's format is not installed.
    """
    log = ArchiveLog(directory)
    return read_files(spark, log.root, log.files())


def read_files(spark: SparkSession, root: Path, files: Iterable[DataFile]) -> DataFrame:
    """Return the messages in some files of the archive at ``root``."""
    paths = [str(root / file.path) for file in files]
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
        born_timestamp=milliseconds(row["bornTimestamp"]),
        born_host=encode_host(*parse_address(row["bornHost"])),
        store_timestamp=milliseconds(row["storeTimestamp"]),
        store_host=encode_host(*parse_address(row["storeHost"])),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
    )
