"""A source whose rows are ready before it is asked, and a sink that drops them: what Spark's Python sources can do at
most.

The rows were read from a topic and lie in an Arrow file, which each task maps into memory and passes on as it is, as
often as needed. So a run costs what Spark takes for planning, starting tasks, moving Arrow from a worker to the JVM or
back, and its own sink. There is no broker, no network, and nothing is decoded.

This module is imported by Spark's workers, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cometmq.spark.records.columns import default_ddl
from cometmq.spark.source.planning import partition_count

FORMAT: Final = "constants"
PARTITION_BYTES: Final = 128 * 1024 * 1024


@dataclass
class Share(InputPartition):
    """The rows of one task."""

    rows: int
    first: int
    """The batch of the file to begin with."""


class Rows:
    """The rows of a read, in as many tasks as our source would have."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._path = options["path"]
        self.rows = int(options["rows"])
        self._row_bytes = float(options["rowbytes"])
        self._names = schema.fieldNames()

    def shares(self, rows: int) -> list[Share]:
        """Divide so many rows."""
        tasks = partition_count(rows, rows * self._row_bytes, 1, PARTITION_BYTES)
        ends = [rows * number // tasks for number in range(tasks + 1)]
        return [Share(end - begin, number) for number, (begin, end) in enumerate(pairwise(ends))]

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        # The file is not closed: Spark writes a batch after it has asked for the next one.
        file = pa.ipc.open_file(pa.memory_map(self._path))
        left = share.rows
        for number in count(share.first):
            if not left:
                return
            batch = file.get_batch(number % file.num_record_batches).select(self._names)
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)


class Reader(DataSourceReader):
    """A batch."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return self._rows.shares(self._rows.rows)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one."""
        return self._rows.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of all rows, ``most`` a micro-batch."""

    def __init__(self, rows: Rows, most: int | None) -> None:
        self._rows = rows
        self._most = most

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's names here and below)
        """No row yet."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a micro-batch."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end is known."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of a micro-batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows.rows
        return {"rows": min(start["rows"] + most, self._rows.rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return self._rows.shares(end["rows"] - start["rows"])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one."""
        return self._rows.read(partition)


@dataclass
class Dropped(WriterCommitMessage):
    """The rows that a task has dropped."""

    rows: int


class Dropper(DataSourceArrowWriter):
    """Drops rows, and leaves their number in a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        """Drop the rows of a task."""
        return Dropped(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the number."""
        Path(self._path).write_text(str(sum(one.rows for one in messages if isinstance(one, Dropped))), "ascii")


class Constants(DataSource):
    """Options: ``path`` of the Arrow file (or of the number), ``rows``, ``rowBytes``, and ``most`` for a stream."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """The columns of our source."""
        return default_ddl()

    def reader(self, schema: StructType) -> Reader:
        """A batch."""
        return Reader(Rows(self.options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """A stream."""
        most = self.options.get("most")
        return StreamReader(Rows(self.options, schema), None if most is None else int(most))

    def writer(self, schema: StructType, overwrite: bool) -> Dropper:
        """A sink."""
        return Dropper(self.options["path"])


def keep(batches: Iterator[pa.RecordBatch], path: Path, most: int) -> None:
    """Write batches of up to so many rows into an Arrow file."""
    first = next(batches)
    rows: int = first.num_rows
    with pa.ipc.new_file(path, first.schema) as file:
        file.write_batch(first)
        while rows < most and (batch := next(batches, None)) is not None:
            file.write_batch(batch)
            rows += batch.num_rows
