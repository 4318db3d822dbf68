"""An archive's files are packed with zstd, but for bodies that it cannot make smaller."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.store_files import make

from cometmq.spark.archives.files import QueueWriter, Uploads, shrinks
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.queues import Queue
from cometmq.storage import StorageError, open_storage

SECONDS = 30
SCHEMA = arrow_schema(ARCHIVE_COLUMNS)
NOISE = random.Random(1)


def noise(number: int) -> bytes:
    return NOISE.randbytes(1000)


def document(number: int) -> bytes:
    return b'{"order": %d, "currency": "EUR", "state": "paid"}' % number * 10


def nothing(number: int) -> bytes:
    return b""


def written(place: Path, batches: list[list[bytes]]) -> tuple[dict[str, str], list[bytes]]:
    """The codec of each column of a file, and the bodies in it."""
    offset = 0
    with Uploads(open_storage(place), 1) as uploads:
        writer = QueueWriter(uploads, Queue("T", "b", 0), SCHEMA)
        for bodies in batches:
            records = [make(offset + number, body) for number, body in enumerate(bodies)]
            offset += len(bodies)
            for batch in decode(Records(b"".join(records)), SCHEMA, broker_name="b"):
                writer.add(batch)
        (made,) = writer.close()
    file = pq.ParquetFile(place / made.path)
    group = file.metadata.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    codecs = {column.path_in_schema: column.compression for column in columns}
    return codecs, file.read(columns=["body"]).column("body").to_pylist()


@pytest.mark.parametrize(
    ("kinds", "codec"),
    [
        ([noise], "UNCOMPRESSED"),
        ([document], "ZSTD"),
        ([nothing], "ZSTD"),
        ([nothing, noise], "UNCOMPRESSED"),
        ([nothing, document], "ZSTD"),
    ],
)
def test_bodies_that_do_not_shrink_are_kept_as_they_are(
    tmp_path: Path, kinds: list[Callable[[int], bytes]], codec: str
) -> None:
    batches = [[kind(number) for number in range(100)] for kind in kinds]
    codecs, bodies = written(tmp_path, batches)
    assert bodies == [body for batch in batches for body in batch]
    assert codecs.pop("body") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert "properties.key_value.value" in codecs


def test_what_is_tried_lies_within_the_array() -> None:
    some: list[Any] = [noise(n) for n in range(500)] + [document(n) for n in range(500)] + [None, b"", noise(0)]
    bodies = pa.array(some, pa.binary())
    assert not shrinks(bodies.slice(0, 500))
    assert shrinks(bodies.slice(500, 500))
    assert shrinks(bodies.slice(1000)), "a single body says nothing"
    assert shrinks(pa.nulls(3, pa.binary()))


def test_files_are_completed_beside_their_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def fsync(_fd: int) -> None:
        assert goes_on.wait(SECONDS)

    monkeypatch.setattr(os, "fsync", fsync)
    storage = open_storage(tmp_path)
    with Uploads(storage, 1) as uploads:
        for name in ("a", "b"):
            uploads.open(name).write(b"x")
            uploads.complete(name, 1)
        assert list(storage.list_objects()) == []
        goes_on.set()
    assert {found.key for found in storage.list_objects()} == {"a", "b"}


def test_a_file_that_cannot_be_completed_fails_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def writing() -> None:
        with Uploads(open_storage(tmp_path), 1) as uploads:
            uploads.open("a").write(b"x")
            uploads.complete("a", 1)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="input/output error"):
        writing()
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_file_that_is_not_complete(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)

    def failing() -> None:
        with Uploads(storage, 1) as uploads:
            for name in ("complete", "begun"):
                uploads.open(name).write(b"x")
            uploads.complete("complete", 1)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert [found.key for found in storage.list_objects()] == ["complete"]
    assert list(storage.list_unfinished()) == []
