"""The work of one Spark task in a process of its own, which tells its peak memory.

``python -m tests.spark.records.task_memory KIND NAMESRV TOPIC ROWS PLACE``: ``read`` and ``archive`` take ROWS
messages from each queue, ``sink`` writes as many; ``store`` archives the whole log beside PLACE, ``upload`` into the S3
server whose endpoint is TOPIC, ``index`` indexes the archive in PLACE by key. Prints bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BODY_BYTES = 4096
ROWS_OF_BATCH = 1000


def read(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """A task of ``spark.read`` with every column."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from cometmq.spark.records.columns import COLUMNS, arrow_schema
    from cometmq.spark.source.reader import read_ranges

    options, ranges = _ranges(namesrv, topic, rows)
    columns = [column.name for column in COLUMNS if column.default]
    for _ in read_ranges(options, from_arrow_schema(arrow_schema(columns)), ranges):
        pass


def archive(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """A task of the archive job."""
    from cometmq.archive.chain import Writer
    from cometmq.spark.jobs.archive.writer import OpenedArchive, write_ranges
    from cometmq.storage import open_storage

    options, ranges = _ranges(namesrv, topic, rows)
    for _ in write_ranges(options, ranges, OpenedArchive(open_storage(place), Writer(1, ""))):
        pass


def store(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """A task of the archive job that reads a store, of which nobody says where it can be cut."""
    from cometmq.storage import open_storage

    _archive_store(place, open_storage(place))


def upload(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """The same into an S3 server."""
    from cometmq.storage import StorageOptions, open_storage

    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    options = StorageOptions(endpoint=topic, region="us-east-1", access_key_id=key, secret_access_key=secret)
    _archive_store(place, open_storage("s3://lake/memory", options))


def _archive_store(place: Path, to: Any) -> None:
    from cometmq.archive.chain import Writer
    from cometmq.spark.jobs.archive.from_store import write_split
    from cometmq.spark.jobs.archive.writer import OpenedArchive
    from cometmq.spark.store.options import parse_store_options
    from cometmq.spark.store.scan import splits

    options = parse_store_options({"path": str(place.parent / "commitlog"), "brokerName": "b"})
    [split] = splits(options)
    for _ in write_split(options, split, OpenedArchive(to, Writer(1, "")), {}):
        pass


def index(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """The tasks of the key index, one after the other, for the archive in PLACE, whose rows are all in one queue."""
    from cometmq.spark.archives.log import ArchiveLog
    from cometmq.spark.jobs.key_entries import NewMessages, make_blocks, write_buckets
    from cometmq.storage import open_storage

    log = ArchiveLog(place)
    new = NewMessages(log.storage, {of.queue: (of.first, of.next) for of in log.queues()})
    [done] = write_buckets(open_storage(place / "index"), "run=0", new.queues, make_blocks(new, log.files()))
    assert sum(done.counts.messages.values()) == rows


def sink(namesrv: str, topic: str, rows: int, place: Path) -> None:
    """A task of the sink."""
    import pyarrow as pa

    from cometmq.spark.sink.encoding import TaskIdentity
    from cometmq.spark.sink.options import parse_sink_options
    from cometmq.spark.sink.writer import SinkPlan, write_rows

    def batches() -> Iterator[Any]:
        for _ in range(rows // ROWS_OF_BATCH):
            yield pa.RecordBatch.from_pydict({"body": [os.urandom(BODY_BYTES) for _ in range(ROWS_OF_BATCH)]})

    options = {"namesrvAddr": namesrv, "topic": topic, "deliveryGuarantee": "exactly-once"}
    write_rows(SinkPlan(parse_sink_options(options), None), TaskIdentity(f"memory-{rows}", 0, 0), batches())


def _ranges(namesrv: str, topic: str, rows: int) -> tuple[Any, Any]:
    from cometmq.spark.records.queues import OffsetRange
    from cometmq.spark.source.cluster import Cluster
    from cometmq.spark.source.options import parse_options

    options = parse_options({"namesrvAddr": namesrv, "topic": topic})
    return options, [OffsetRange(queue, 0, rows) for queue in Cluster(options).queues()]


def main(kind: str, namesrv: str, topic: str, rows: str, place: str) -> None:
    """Do it once."""
    globals()[kind](namesrv, topic, int(rows), Path(place))
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) * 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
