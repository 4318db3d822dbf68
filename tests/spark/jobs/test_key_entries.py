"""Entries of a key index: which keys messages have, in which buckets they are, and how they are sorted on a disk."""

from __future__ import annotations

import tracemalloc
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.archive.files import DataFile
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.jobs import key_entries
from cometmq.spark.jobs.key_entries import BUCKETS, Counts, NewMessages, Queues, count_new, make_blocks, write_buckets
from cometmq.spark.jobs.key_index import _places
from cometmq.spark.jobs.task_files import write_file
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.queues import Queue
from cometmq.storage import Storage, open_storage

Keys = tuple[str | None, str | None]
"""The unique key and KEYS of a message."""


def write_archive(storage: Storage, queue: Queue, messages: Sequence[Keys]) -> DataFile:
    """A data file with messages that have these keys."""
    schema = arrow_schema(ARCHIVE_COLUMNS)
    given: dict[str, Any] = {
        "topic": queue.topic,
        "brokerName": queue.broker,
        "queueId": queue.queue_id,
        "body": b"x",
        "storeTimestamp": 1,
    }
    rows = [
        {field.name: None for field in schema} | given | {"queueOffset": offset, "uniqKey": unique, "keys": keys}
        for offset, (unique, keys) in enumerate(messages)
    ]
    with Uploads(storage, 1) as uploads:
        writer = QueueWriter(uploads, queue, schema)
        writer.add(pa.RecordBatch.from_pylist(rows, schema=schema))
        [file] = writer.close()
    return file


def indexed(storage: Storage, files: Sequence[DataFile], ranges: dict[Queue, tuple[int, int]]) -> list[dict[str, Any]]:
    """The rows of an index of data files, as one task writes it; and each file is sorted."""
    new = NewMessages(storage, ranges)
    [done] = write_buckets(storage, "run=0", new.queues, make_blocks(new, files))
    rows = []
    for file in done.files:
        table = pq.ParquetFile(storage.open_reader(file.path)).read().to_pylist()
        names = [(row["topic"], row["key"]) for row in table]
        assert names == sorted(names)
        assert {zlib.crc32(f"{topic}#{key}".encode()) % BUCKETS for topic, key in names} == {file.bucket}
        rows += table
    assert sum(done.counts.keys.values()) == len(rows)
    assert Counts.total(count_new(new, files)) == done.counts, "a dry run counts the same"
    return rows


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (("u", "a b"), {"u", "a", "b"}),
        (("u 1", " a  b "), {"u 1", "a", "b"}),
        (("u", "u"), {"u"}),
        (("u", "b a b u a"), {"u", "a", "b"}),
        ((None, "a"), {"a"}),
        (("u", None), {"u"}),
        (("", ""), set()),
        ((None, None), set()),
        (("ü\x01", "é \U0001f600 \x01"), {"ü\x01", "é", "\U0001f600", "\x01"}),
        (("u", " ".join(str(number % 5000) for number in range(10_000))), {"u", *map(str, range(5000))}),
    ],
)
def test_a_message_has_an_entry_for_each_of_its_keys(tmp_path: Path, message: Keys, keys: set[str]) -> None:
    storage, queue = open_storage(tmp_path), Queue("T", "b", 3)
    file = write_archive(storage, queue, [("other", None), message])
    rows = indexed(storage, [file], {queue: (1, 2)})
    assert len(rows) == len(keys)
    assert {row["key"] for row in rows} == keys
    assert all(
        (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) == ("T", "b", 3, 1) for row in rows
    )


def test_each_message_of_each_queue_has_its_own_keys(tmp_path: Path) -> None:
    """Of messages with and without keys, in queues with different messages."""
    storage, random = open_storage(tmp_path), Random(1)
    texts = (None, "", " ", "a", "a b", " b", "b  c a", "k1", "k2", "k3 k1")
    queues = [Queue(topic, broker, number) for topic in ("T", "Ä%", "TT") for broker in "bc" for number in (0, 1)]
    messages = {queue: [(random.choice(texts), random.choice(texts)) for _ in range(100)] for queue in queues}
    files = [write_archive(storage, queue, messages[queue]) for queue in queues]
    rows = indexed(storage, files, dict.fromkeys(queues, (10, 90)))
    found = sorted((row["topic"], row["brokerName"], row["queueId"], row["queueOffset"], row["key"]) for row in rows)
    assert found == sorted(
        (*queue, offset, key)
        for queue in queues
        for offset, (unique, keys) in enumerate(messages[queue])
        if 10 <= offset < 90
        for key in {unique, *(keys or "").split(" ")}
        if key
    )


def test_messages_with_thousands_of_keys_are_read_in_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends such messages cannot fill the memory of a task."""
    monkeypatch.setattr(key_entries, "_READ_BYTES", 100)
    storage, queue, letters = open_storage(tmp_path), Queue("T", "b", 0), "a b c d e f g h i j"
    keys = ["x" * 101, letters, None, "", "y" * 100, *[letters] * 20, "x" * 101, "x" * 101]
    new = NewMessages(storage, {queue: (1, 100)})
    file = write_archive(storage, queue, [("u", of) for of in keys])
    parts = [part.column("keys").to_pylist() for part in new.read(file)]
    assert [of for part in parts for of in part] == keys[1:]
    assert all(sum(len(of or "") for of in part) <= 100 or len(part) == 1 for part in parts)
    assert len(parts) == 2 + 20 // 5 + 2 + 1
    rows = indexed(storage, [file], {queue: (1, 100)})
    assert Counter(row["key"] for row in rows)["a"] == 21


def test_keys_whose_hashes_are_equal_are_different_keys(tmp_path: Path) -> None:
    """CRC-32 of ``plumless`` and of ``buckeroo`` is the same, so it is after any beginning."""
    assert zlib.crc32(b"T#plumless") == zlib.crc32(b"T#buckeroo")
    storage, queue = open_storage(tmp_path), Queue("T", "b", 0)
    file = write_archive(storage, queue, [("plumless", "buckeroo plumless buckeroo")])
    assert sorted(row["key"] for row in indexed(storage, [file], {queue: (0, 1)})) == ["buckeroo", "plumless"]


@pytest.mark.parametrize(("sorted_bytes", "merged_rows"), [(1 << 30, 1000), (20_000, 7), (1, 1)])
@pytest.mark.parametrize("topics", ["T", "TA"])
def test_what_does_not_fit_into_memory_is_sorted_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: str, sorted_bytes: int, merged_rows: int
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{spool},/elsewhere")
    monkeypatch.setattr(key_entries, "_SORTED_BYTES", sorted_bytes)
    monkeypatch.setattr(key_entries, "_MERGED_ROWS", merged_rows)
    monkeypatch.setattr(key_entries, "_BLOCKS_BYTES", 3000)
    parts: list[Any] = []

    def counted(**given: Any) -> Any:
        parts.append(given)
        return TemporaryFile(**given)

    monkeypatch.setattr(key_entries, "TemporaryFile", counted)
    storage = open_storage(tmp_path / "lake")
    queues = [Queue(topic, "b", queue_id) for topic in topics for queue_id in range(2)]
    messages: list[Keys] = [(f"u{number * 7919 % 400:04}", f"k{number % 13} all") for number in range(400)]
    files = [write_archive(storage, queue, messages) for queue in queues]
    rows = indexed(storage, files, dict.fromkeys(queues, (0, 400)))
    assert sorted((row["topic"], row["queueId"], row["queueOffset"], row["key"]) for row in rows) == sorted(
        (queue.topic, queue.queue_id, offset, key)
        for queue in queues
        for offset, (unique, keys) in enumerate(messages)
        for key in (unique, *str(keys).split())
    )
    assert not list(spool.iterdir())
    assert bool(parts) == (sorted_bytes < 1 << 30)
    assert all(given == {"dir": str(spool)} for given in parts)


def test_the_oldest_messages_of_a_key_are_found_in_little_memory(tmp_path: Path) -> None:
    """A key may have millions of messages."""
    storage, queues, rows = open_storage(tmp_path), Queues([Queue("T", "b", 0)]), 100_000
    for number in range(2):
        times = np.random.default_rng(number).permutation(rows) * 2 + number
        columns = [["hot"] * rows, np.zeros(rows, np.int32), np.arange(rows), times]
        entries = pa.RecordBatch.from_arrays([pa.array(of) for of in columns], schema=key_entries._ENTRIES)
        write_file(storage, f"{number}.parquet", [queues.rows(entries)])
    paths = ["0.parquet", "1.parquet"]
    _places(storage, paths, "T", "hot", 1)  # imports what it needs
    tracemalloc.start()
    try:
        found = _places(storage, paths, "T", "hot", 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [place["storeTimestamp"] for place in found] == [*range(1000)]
    assert peak < 5_000_000
    assert _places(storage, paths, "T", "cold", 1000) == []
