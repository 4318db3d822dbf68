"""Parquet files that tasks write into a storage, and read from it.

A task that fails leaves no file. A task that is repeated although its file is complete writes another one. So only the
files that the driver has learnt from its tasks count, and a document that is created once lists them. Spark's own
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
from cometmq.spark.archives.log import demand_visible
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


def unique_path(directory: str) -> str:
    """Return a path that no other file has."""
    return f"{directory}/part-{uuid.uuid4().hex}.parquet"


def write_file(
    storage: Storage, path: str, batches: Iterable[pa.RecordBatch], *, dictionary: list[str] | bool = True
) -> TaskFile | None:
    """Write the batches to a file, and return it. Return None if there are no batches.

    :param dictionary: columns that are dictionary-encoded; True for all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return None
    rows = 0
    with storage.open_writer(path) as file:
        with pq.ParquetWriter(file, first.schema, compression="zstd", use_dictionary=dictionary) as writer:
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
    """Write a frame into a storage that has no table. Other tools read all Parquet files in it as one table.

    These tools do not know which files count. So a file has the number of its partition as its name, and a repeated
    task replaces the file of the task before it. ``_files.json`` lists the files of a complete table.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[TaskFile]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task runs this"
        file = write_file(storage, f"part-{context.partitionId():05d}.parquet", batches)
        return iter([file] if file is not None else [])

    files = collect_results(frame, write, TaskFile)
    if not files:
        empty = pa.RecordBatch.from_pylist([], schema=to_arrow_schema(frame.schema, timezone="UTC"))
        files = [file] if (file := write_file(storage, "part-00000.parquet", [empty])) else []
    demand_visible(storage, ((file.path, file.bytes) for file in files))
    create_document(storage, FILES, files)


def delete_unnamed(storage: Storage, directory: str, named: Collection[str]) -> None:
    """Delete the files that repeated tasks and killed runs have left in a directory whose files are listed now."""
    storage.delete([found.key for found in storage.list_objects(directory) if found.key not in named])


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
