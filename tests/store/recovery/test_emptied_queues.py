"""Queues whose messages retention has all removed keep their numbering, also when their files are lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.conftest import StoreBench, fill, put, served

EMPTIED = 250
"""Messages that each queue had: more than one queue file holds."""


def emptied_store(bench: StoreBench) -> None:
    """Topic ``TopicTest`` has three queues without a message that is kept; ``Other`` has some."""
    store = bench.open()
    fill(store, 3 * EMPTIED)
    end = store.max_physical_offset
    fill(store, 1_000, topic="Other")
    store.close_now()
    for path in bench.log_files:
        if int(path.name) <= end:
            path.unlink()
    store = bench.open()
    extents = [(queue.min_offset(), queue.max_offset()) for queue in store.queues()["TopicTest"].values()]
    assert extents == [(EMPTIED, EMPTIED)] * 3
    store.close_now()


def no_files(queue: Path) -> None:
    shutil.rmtree(queue)


def no_file_that_ends_it(queue: Path) -> None:
    max(queue.iterdir()).unlink()


def only_zeros(queue: Path) -> None:
    for path in queue.iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def zeros_at_its_end(queue: Path) -> None:
    with max(queue.iterdir()).open("r+b") as file:
        file.seek((EMPTIED % 100 - 7) * 20)
        file.write(bytes(7 * 20))


@pytest.mark.parametrize("lose", [no_files, no_file_that_ends_it, only_zeros, zeros_at_its_end])
def test_an_emptied_queue_goes_on_where_it_ended_without_its_files(
    lose: Callable[[Path], None], bench: StoreBench
) -> None:
    emptied_store(bench)
    for queue_id in range(3):
        lose(bench.root / "consumequeue" / "TopicTest" / str(queue_id))
    for _ in range(2):
        store = bench.open()
        for queue in store.queues()["TopicTest"].values():
            assert (queue.min_offset(), queue.max_offset()) == (EMPTIED, EMPTIED)
        assert set(served(store)) == {("Other", 0), ("Other", 1), ("Other", 2)}
        store.close_now()
    (bench.root / "comet" / "position.json").unlink()
    store = bench.open()
    put(store, "TopicTest", 0, b"new")
    store.batch.commit()
    queue = store.queue("TopicTest", 0)
    assert (queue.min_offset(), queue.max_offset()) == (EMPTIED, EMPTIED + 1)
    assert len(served(store)["TopicTest", 0]) == 1
