"""The memory of a task does not grow with the topic, and stays below the stated limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.records.task_memory import BODY_BYTES
from tests.spark.topics import Topics
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, seaweed

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.archive.changes import Batch
from cometmq.archive.commits import Covered
from cometmq.limits import SPARK_TASK_BYTES
from cometmq.message.hosts import encode_host
from cometmq.message.layout import RECORD
from cometmq.message.record import body_crc, encode_record
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.queues import Queue
from cometmq.storage import open_storage

LARGE = 30_000
"""Messages of each queue of the large topic; with two queues 250 MB."""
QUEUES = 2
TOPIC_BYTES = LARGE * QUEUES * BODY_BYTES
UPLOADS_BYTES = 48 << 20
"""Of the parts of a task's files in an object store, and of its client."""
MARGIN_BYTES = 96 << 20
"""Of ten times the messages over the small topic, whose buffers are not full yet."""


@pytest.fixture(scope="module")
def large_topic(topics: Topics) -> str:
    """A topic that is much larger than a task may be."""
    topic = topics.create(QUEUES)
    body = bytes(range(256)) * (BODY_BYTES // 256)
    for queue_id in range(QUEUES):
        topics.send(topic, queue_id, [body] * LARGE)
    return topic


def peak(kind: str, topics: Topics | None, topic: str, rows: int, place: Path) -> int:
    """Peak memory of a task, bytes."""
    namesrv = "" if topics is None else topics.namesrv
    command = [sys.executable, "-m", "tests.spark.records.task_memory", kind, namesrv, topic, str(rows), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def write_log(place: Path, body_bytes: int, messages: int, queues: int = 1, *, noise: bool = False) -> None:
    """A log of equal messages, or of messages whose bodies do not compress."""
    record = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=bytes(body_bytes),
        properties_text="TAGS\x01a\x02KEYS\x01key\x02UNIQ_KEY\x017F000001000000000000000000000001\x02",
        born_timestamp=1,
        born_host=encode_host("127.0.0.1", 1),
        store_timestamp=2,
        store_host=encode_host("127.0.0.1", 10911),
    )
    log = np.tile(np.frombuffer(record, np.uint8), (messages, 1))
    numbers = np.arange(messages, dtype=np.int64)
    fields = {
        "queue_id": (numbers % queues).astype(">i4"),
        "queue_offset": (numbers // queues).astype(">i8"),
        "physical_offset": (numbers * len(record)).astype(">i8"),
    }
    if noise:
        bodies = np.frombuffer(np.random.default_rng(1).bytes(messages * body_bytes), np.uint8)
        bodies = bodies.reshape(messages, body_bytes)
        log[:, RECORD.size : RECORD.size + body_bytes] = bodies
        fields["body_crc"] = np.array([body_crc(body.data) for body in bodies]).astype(">i4")
    for field, values in fields.items():
        at = RECORD.offsets[field]
        log[:, at : at + values.itemsize] = values.view(np.uint8).reshape(messages, -1)
    (place / "commitlog").mkdir()
    log.tofile(place / "commitlog" / f"{0:020d}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("body_bytes", "messages"), [(BODY_BYTES, 60_000), (16, 1_200_000)])
def test_a_task_that_reads_a_store_stays_within_its_limit(tmp_path: Path, body_bytes: int, messages: int) -> None:
    """Of 250 MB of records, few or many."""
    write_log(tmp_path, body_bytes, messages)
    assert peak("store", None, "", messages, tmp_path / "lake") < SPARK_TASK_BYTES
    written = sum(pq.ParquetFile(file).metadata.num_rows for file in (tmp_path / "lake").rglob("*.parquet"))
    assert written == messages


@pytest.mark.timeout(600)
@pytest.mark.parametrize("queues", [1, 8])
def test_bodies_that_do_not_compress_need_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    """250 MB of records, for a disk and for a server that is slower than the task."""
    write_log(tmp_path, 1000, 240_000, queues, noise=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    (tmp_path / "server").mkdir()
    disk = peak("store", None, "", 240_000, tmp_path / "lake")
    assert disk < SPARK_TASK_BYTES
    with seaweed(tmp_path / "server") as server:
        assert peak("upload", None, server.endpoint, 240_000, tmp_path / "lake") < disk + UPLOADS_BYTES
        stored = open_storage("s3://lake/memory", server.options)
        assert sum(found.size for found in stored.list_objects()) > 240_000_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["read", "archive", "sink"])
def test_a_task_needs_no_more_for_ten_times_the_messages(
    topics: Topics, large_topic: str, kind: str, tmp_path: Path
) -> None:
    topic = topics.create(QUEUES) if kind == "sink" else large_topic
    small = peak(kind, topics, topic, LARGE // 10, tmp_path / "small")
    large = peak(kind, topics, topic, LARGE, tmp_path / "large")
    assert large < small + MARGIN_BYTES < small + TOPIC_BYTES // 2
    assert large < SPARK_TASK_BYTES


@pytest.mark.timeout(600)
def test_a_task_that_indexes_by_key_stays_within_its_limit(tmp_path: Path) -> None:
    """Of a million messages, whose entries do not fit into the memory in which they are sorted."""
    schema, rows = arrow_schema(ARCHIVE_COLUMNS), 1_000_000
    numbers = np.random.default_rng(1).permutation(rows)
    given = {
        "topic": ["T"] * rows,
        "brokerName": ["b"] * rows,
        "queueId": [0] * rows,
        "queueOffset": range(rows),
        "storeTimestamp": [1] * rows,
        "body": [b""] * rows,
        "uniqKey": [f"7F0000010A2B18B4{number:016X}" for number in numbers],
        "keys": [f"order-{number:016}" for number in numbers],
    }
    columns = [pa.array(given.get(field.name, [None] * rows), field.type) for field in schema]
    log = ArchiveLog(tmp_path)
    with log.locked(), Uploads(log.storage, log.writer.epoch) as uploads:
        writer = QueueWriter(uploads, Queue("T", "b", 0), schema)
        every = pa.RecordBatch.from_arrays(columns, schema=schema)
        for first in range(0, rows, 10_000):
            writer.add(every.slice(first, 10_000))
        files = writer.close()
    log.append(Batch("test", 0, covered=[Covered("T", "b", 0, 0, rows)], files=files))
    assert peak("index", None, "", rows, tmp_path) < SPARK_TASK_BYTES
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in (tmp_path / "index").rglob("*.parquet")) == 2 * rows
