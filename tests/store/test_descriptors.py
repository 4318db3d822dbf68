"""Descriptors: a store with many queues needs few of them."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.store.conftest import StoreBench, fill, put

from cometmq import descriptors
from cometmq.store.errors import StoreError
from cometmq.store.message_store import GetMessageStatus

_TOPICS = 300
_OF_MAPPING = 0 if sys.version_info >= (3, 13) else 1
"""Descriptors of a mapping."""


def _write_and_read_with_forty_descriptors(root: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors.in_use() + 40, hard))
    bench = StoreBench(root)
    store = bench.open()
    for number in range(_TOPICS):
        put(store, f"T{number}", 0, b"%d" % number)
    store.batch.commit()
    store.close_now()
    store = bench.open()
    for _ in range(2):
        for number in range(_TOPICS):
            found = store.get_message(store.queue(f"T{number}", 0), 0, 1)
            assert found.status is GetMessageStatus.FOUND
        for number in range(_TOPICS):
            put(store, f"T{number}", 0, b"%d" % number)
        store.batch.commit()
    bench.close_all()


def test_forty_descriptors_are_enough_for_hundreds_of_topics(tmp_path: Path) -> None:
    """As 1,024 are for 8,000 topics. The process is a new one, because this one may have any number of open files."""
    process = multiprocessing.get_context("spawn").Process(
        target=_write_and_read_with_forty_descriptors, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_closed_store_keeps_no_descriptor_though_its_objects_live_on(bench: StoreBench) -> None:
    store = bench.open()
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        put(store, f"T{number}", 0, b"x")
    store.batch.commit()
    found = store.get_message(store.queue("T0", 0), 0, 1)
    store.close_now()
    assert found.status is GetMessageStatus.FOUND
    assert len(os.listdir("/dev/fd")) < before


def test_each_log_file_keeps_that_of_its_mapping_and_the_one_that_is_written_another(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 2_000)
    files = len(store._log.segments)
    assert files >= 8
    store.close_now()
    store = bench.open()
    assert _of_log(bench) == _OF_MAPPING * files + 1
    before = store.max_physical_offset
    assert store.get_message(store.queue("TopicTest", 0), 0, 1).status is GetMessageStatus.FOUND
    fill(store, 1)
    assert store.max_physical_offset > before
    assert _of_log(bench) <= _OF_MAPPING * files + 3  # with the next file, which is made ahead


async def test_a_log_file_that_is_full_and_flushed_gives_its_second_descriptor_back(bench: StoreBench) -> None:
    store = bench.open()
    store.start()
    fill(store, 2_000)
    files = len(store._log.segments)
    assert _of_log(bench) >= (_OF_MAPPING + 1) * files
    await store.wait_flushed(store.max_physical_offset)
    assert _of_log(bench) <= _OF_MAPPING * files + 3


def _open_with_too_few_descriptors(root: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors.in_use() + 3, hard))
    with pytest.raises(StoreError) as found:
        StoreBench(root).open()
    assert "ulimit -n" in str(found.value.next_step)


def test_a_store_that_lacks_descriptors_says_what_to_raise_and_is_unchanged(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 2_000)
    end = store.max_physical_offset
    store.close_now()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_open_with_too_few_descriptors, args=(bench.root,))
    process.start()
    process.join()
    assert process.exitcode == 0
    store = bench.open()
    assert (store.findings, store.max_physical_offset) == ([], end)


def _of_log(bench: StoreBench) -> int:
    """Count this process's descriptors of log files."""
    count = 0
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):
            count += entry.readlink().parent == bench.root / "commitlog"
    return count
