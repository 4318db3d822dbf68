"""Data files of an archive as executors leave them, made without a broker; and a process that commits them.

``python -m tests.spark.lake_files ROOT FORMAT BATCHES POINT`` appends batches of :data:`BATCH` messages to two queues,
and goes on as the archive job does where the last process stopped. In the second batch it kills itself at POINT:
``writing`` (one of two files is written), ``before`` or ``after`` the table's transaction, or ``never``. With
``compact`` for BATCHES it joins the files of the archive instead, and kills itself at the first transaction.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cometmq.archive.chain import CommitChain, Writer
from cometmq.archive.changes import Batch
from cometmq.archive.commits import Covered
from cometmq.archive.files import DataFile
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog, read_archive, table_at
from cometmq.spark.archives.table import PARQUET, TableFormat
from cometmq.spark.jobs.archive.upkeep import join_files, planned_joinings
from cometmq.spark.jobs.archive.writer import OpenedArchive
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.queues import Queue
from cometmq.storage import open_storage

if TYPE_CHECKING:
    import pytest

AT_MS = 1_704_067_200_000
"""2024-01-01T00:00:00Z, the store time of offset 0; each further message is stored a millisecond later."""
HOUR_MS = 3_600_000
BATCH = 10
QUEUES = (Queue("orders", "broker-a", 0), Queue("%DLQ%a/b", "broker-a", 1))


def messages(queue: Queue, offsets: Iterable[int], at_ms: int = AT_MS) -> Any:
    """Messages of a queue as a record batch."""
    schema = arrow_schema(ARCHIVE_COLUMNS)
    numbers = list(offsets)
    given: dict[str, list[Any]] = {
        "topic": [queue.topic] * len(numbers),
        "brokerName": [queue.broker] * len(numbers),
        "queueId": [queue.queue_id] * len(numbers),
        "queueOffset": numbers,
        "body": [b"body %d" % number for number in numbers],
        "properties": [[("UNIQ_KEY", f"U{number}"), ("KEYS", f"k{number}")] for number in numbers],
        "uniqKey": [f"U{number}" for number in numbers],
        "keys": [f"k{number}" for number in numbers],
        "propertiesText": [f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number}\x02" for number in numbers],
        "bornTimestamp": [(at_ms + number) * 1000 for number in numbers],
        "storeTimestamp": [(at_ms + number) * 1000 for number in numbers],
        "bornHost": ["127.0.0.1:1"] * len(numbers),
        "storeHost": ["127.0.0.1:2"] * len(numbers),
        "storedBody": [None] * len(numbers),
        "tags": [None] * len(numbers),
    }
    columns = [pa.array(given.get(field.name, numbers), field.type) for field in schema if field.name != "msgId"]
    columns.insert(schema.get_field_index("msgId"), pa.array([f"{number:032X}" for number in numbers]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def written(root: Path, queue: Queue, first: int, end: int, at_ms: int = AT_MS) -> list[DataFile]:
    """Write offsets of a queue below ``root``, one file for each hour of their store times."""
    return written_rows(root, queue, [messages(queue, range(first, end), at_ms)])


def written_rows(root: Path, queue: Queue, batches: Iterable[Any], epoch: int = 1) -> list[DataFile]:
    """Write messages of a queue below ``root``, one file for each hour of their store times."""
    with Uploads(open_storage(root), epoch) as uploads:
        writer = QueueWriter(uploads, queue, arrow_schema(ARCHIVE_COLUMNS))
        for batch in batches:
            writer.add(batch)
        return writer.close()


def opened(root: Path) -> OpenedArchive:
    """An archive for the tasks of a job."""
    return OpenedArchive(open_storage(root), Writer(1, ""))


def dies_at_its_commit(log: ArchiveLog, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """Let the next transaction of an archive end its writer, before or after it is there."""
    table: Any = CommitChain if log.format == PARQUET else type(table_at(log.storage, None))
    name = "_create" if log.format == PARQUET else "commit"
    commit = getattr(table, name)

    def dying(*given: Any) -> None:
        if after:
            commit(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(table, name, dying)


def cover(queue: Queue, first: int, end: int) -> Covered:
    """A range that was read."""
    return Covered(queue.topic, queue.broker, queue.queue_id, first, end)


def append(
    log: ArchiveLog, batch: int, queue: Queue, first: int, end: int, *, query: str = "q", at_ms: int = AT_MS
) -> bool:
    """Write and commit a batch of one queue; whether it was new."""
    files = written(Path(log.url), queue, first, end, at_ms)
    return log.append(Batch(query, batch, [cover(queue, first, end)], files)) is not None


def stored(root: Path) -> dict[Queue, list[int]]:
    """The offsets of each queue that are in the archive's files, sorted."""
    import pyarrow.parquet as pq

    found: dict[Queue, list[int]] = {}
    for file in ArchiveLog(root).files():
        table = pq.ParquetFile(root / file.path).read(["queueOffset"])
        assert table.num_rows == file.rows
        found.setdefault(file.queue, []).extend(table["queueOffset"].to_pylist())
    return {queue: sorted(offsets) for queue, offsets in found.items()}


def demand_exactly(spark: Any, to: Path, topic: str, counts: dict[int, int]) -> None:
    """Every offset of every queue is in the archive once, by the log and by the files."""
    log = ArchiveLog(to)
    assert {of.queue_id: (of.first, of.next, of.rows) for of in log.queues()} == {
        queue_id: (0, count, count) for queue_id, count in counts.items()
    }
    rows = read_archive(spark, to).select("topic", "queueId", "queueOffset").collect()
    assert {row.topic for row in rows} == {topic}
    assert sorted((row.queueId, row.queueOffset) for row in rows) == [
        (queue_id, offset) for queue_id in sorted(counts) for offset in range(counts[queue_id])
    ]


def main(root: str, name: str, batches: str, point: str) -> None:
    """Go on where the last process stopped; its last batch is repeated, as Spark may do."""
    log = ArchiveLog(root, TableFormat(name))
    with log.locked():
        committed = log.last_batch_of("q")
        begin = 0 if committed is None else committed
        for batch in range(begin, int(batches)):
            dies = point if batch == begin + 1 else "never"
            first, end = batch * BATCH, (batch + 1) * BATCH
            archived = log.next_offsets()
            files = []
            for queue in QUEUES:
                if first >= archived.get(queue, first):
                    files += written(Path(log.url), queue, first, end)
                    _reached("writing", dies)
            _reached("before", dies)
            log.append(Batch("q", batch, [cover(queue, first, end) for queue in QUEUES], files))
            _reached("after", dies)


def join(root: str, name: str, point: str) -> None:
    """Compact without Spark."""
    log = ArchiveLog(root, TableFormat(name))
    with log.locked_for_upkeep():
        for joining in planned_joinings(log.files(), 1 << 30, AT_MS + HOUR_MS):
            made = join_files(log.storage, joining.files)
            _reached("before", point)
            log.replace(joining.files, [made])
            _reached("after", point)


def _reached(point: str, dies: str) -> None:
    if point == dies:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[3] == "compact":
        join(sys.argv[1], sys.argv[2], sys.argv[4])
    else:
        main(*sys.argv[1:])
