"""Parquet files that tasks write into a storage under unique names, and that tasks read from it.

A task that fails leaves no file. A task that is repeated although its file is complete writes another file. So only
files count that the driver has learnt from the tasks, and a document that is created once lists them. Spark's own
writers need directories that can be renamed, and jars for object stores.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.archive.locks import local_directory
from cometmq.spark.jobs.documents import create_document
from cometmq.spark.jobs.run import collect_results
from cometmq.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FILES: Final = "_files.json"
"""The document that lists the files of a new table."""
_GROUP_ROWS: Final = 65_536
"""Number of rows in a row group, which a reader of a few rows reads as a whole."""
_TASKS_MAX: Final = 10_000
"""Maximum number of tasks that read. If there are more files, a task reads several."""


class TaskFile(msgspec.Struct, frozen=True):
    """A file that a task has written."""

    path: str
    rows: int
    bytes: int


def write_file(storage: Storage, prefix: str, batches: Iterable[pa.RecordBatch]) -> TaskFile | None:
    """Write the batches to one file, and return it. Return None if there are no batches.

    :param prefix: beginning of the file's path, which a unique name follows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return None
    path, rows = f"{prefix}{uuid.uuid4().hex}.parquet", 0
    with storage.open_writer(path) as file:
        with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
            for group in _groups(chain([first], batches)):
                writer.write_table(pa.Table.from_batches(group))
                rows += sum(batch.num_rows for batch in group)
        return TaskFile(path, rows, file.tell())


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield gathered
            gathered, rows = [], 0
    if gathered:
        yield gathered


def write_new_table(frame: DataFrame, storage: Storage) -> None:
    """Write a frame into a storage that has no table. Other tools read all Parquet files in it as one table."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    prefix = f"part-{uuid.uuid4().hex[:8]}-"
    files = collect_results(frame, partial(_write_files, storage, prefix), TaskFile)
    if not files:
        empty = pa.RecordBatch.from_pylist([], schema=to_arrow_schema(frame.schema, timezone="UTC"))
        files = list(_write_files(storage, prefix, [empty]))
    create_document(storage, FILES, files)
    delete_unnamed(storage, "", {FILES, *(file.path for file in files)}, prefix=prefix)


def _write_files(storage: Storage, prefix: str, batches: Iterable[pa.RecordBatch]) -> Iterator[TaskFile]:
    file = write_file(storage, prefix, batches)
    if file is not None:
        yield file


def delete_unnamed(storage: Storage, directory: str, named: Collection[str], *, prefix: str = "") -> None:
    """Delete the files that repeated tasks and killed runs have left in a directory whose files are listed now."""
    found = [found.key for found in storage.list_objects(directory)]
    storage.delete(key for key in found if key not in named and key.startswith(prefix))


def read_table(spark: SparkSession, storage: Storage, paths: Sequence[str], ddl: str) -> DataFrame:
    """Return the rows of files, whose columns have the names and types in ``ddl``. At least one file is needed.

    Spark itself reads local files. For others it would need jars and credentials, so Python workers read them.
    """
    if local_directory(storage) is not None:
        return spark.read.schema(ddl).parquet(*map(storage.describe, paths))
    numbers = spark.range(0, len(paths), 1, min(len(paths), _TASKS_MAX))
    return numbers.mapInArrow(partial(_rows, storage, paths), ddl)


def _rows(storage: Storage, paths: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            with pq.ParquetFile(storage.open_reader(paths[number]), pre_buffer=True) as file:
                yield from file.iter_batches()
