"""A copy of a store gives the same records in each kind of storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.store_files import write_store
from tests.storage.fixtures import KINDS

from cometmq.spark.store.files import log_files
from cometmq.spark.store.place import LocalStore, StoredStore, StorePlace
from cometmq.spark.store.queues import ConsumeQueues
from cometmq.spark.store.scan import LogSplit, sound_records
from cometmq.storage import Storage


def contents(place: StorePlace) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The records and the bounds of the queues."""
    records = [
        bytes(found.source[at : at + size])
        for file in log_files(place)
        for found in sound_records(LogSplit(file, file.start, file.end), None)
        for at, size in zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    ]
    queues = ConsumeQueues(place)
    units = [queues.units(*key) for key in queues.named()]
    return records, [found.bounds() for found in units if found is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_are_those_on_the_disk(kind: str, servers: Callable[[str], Storage], tmp_path: Path) -> None:
    write_store(tmp_path, 1200, body=lambda number: b"%d" % number * 300)
    storage = servers(kind).below("copy-of-a-store")
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size:
            storage.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    records, bounds = contents(LocalStore(tmp_path))
    assert (len(records), bounds) == (1200, [(0, 400)] * 3)
    assert contents(StoredStore(storage.url, storage)) == (records, bounds)
