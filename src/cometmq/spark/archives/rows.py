"""Lets Python workers read data files in object stores, without jars or credentials in Spark's configuration.

A session that reads ``s3a://`` itself needs ``hadoop-aws`` and Amazon's SDK of several hundred megabytes. Python
workers read as fast with the library that writes archives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.archive.commits import BodyColumn
from cometmq.archive.files import DataFile
from cometmq.spark.records.body_columns.types import ddl_of
from cometmq.spark.records.columns import ARCHIVE_DDL, BY_NAME
from cometmq.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASKS_MAX: Final = 10_000
"""Maximum number of tasks. If there are more files, a task reads several."""
_ROWS: Final = 8192
"""Maximum number of messages in a batch."""


def read_rows(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[DataFile],
    name: str,
    body_columns: Sequence[BodyColumn] = (),
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the messages in data files.

    :param name: column for the name of a message's file; none if it is empty.
    :param body_columns: columns of a table that are decoded from bodies.
    :param columns: columns of an archive to read; by default all.
    """
    ddl = ARCHIVE_DDL if columns is None else ", ".join(f"{column} {BY_NAME[column].type}" for column in columns)
    ddl = ", ".join(filter(None, [ddl, ddl_of(body_columns), f"{name} string" if name else ""]))
    numbers = spark.range(0, len(files), 1, min(len(files), _TASKS_MAX))
    return numbers.mapInArrow(partial(_rows, storage, files, name, body_columns, columns), ddl)


def _rows(
    storage: Storage,
    files: Sequence[DataFile],
    name: str,
    body_columns: Sequence[BodyColumn],
    columns: Sequence[str] | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from cometmq.spark.archives.files import read_batches
    from cometmq.spark.records.body_columns.conforming import conform, table_schema

    schema, wanted = table_schema(body_columns), None
    if columns is not None:
        wanted = [*columns, *(column.name for column in body_columns)]
        schema = pa.schema([schema.field(column) for column in wanted])
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            file = files[number]
            for batch in read_batches(storage, file, wanted, rows=_ROWS):
                found = conform(batch, schema)
                if name:
                    names = pa.array([file.path.rpartition("/")[2]] * found.num_rows, pa.string())
                    found = found.append_column(pa.field(name, pa.string()), names)
                yield found
