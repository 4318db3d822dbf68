"""A store whose log is cut is as if it had never had the bytes, and a kill at any system call changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.store.conftest import HOST, StoreBench, fill, keys_found, put, served
from tests.store.disks import MoodyDisk

from cometmq.message.names import POP_LOG_TOPIC, TIMER_TOPIC
from cometmq.store.config import StoreConfig
from cometmq.store.cut import PARTED, cut_log
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.position import TimerPosition, read_position
from cometmq.store.write_batch import NewRecord

CHANGES = (
    *("open", "pwrite", "write", "truncate", "ftruncate", "unlink", "remove", "replace", "rename"),
    *("mkdir", "rmdir", "fsync", "fdatasync", "posix_fallocate"),
)
"""The system calls that change files."""


def extents(store: MessageStore) -> dict[tuple[str, int], tuple[int, int]]:
    """The ends of all queues that have messages."""
    return {
        queue.key: (queue.min_offset(), queue.committed)
        for queues in store.queues().values()
        for queue in queues.values()
        if queue.committed
    }


def files_of(root: Path) -> dict[str, bytes]:
    """The bytes of the log and the queues; a directory of a queue without messages is left out."""
    paths = [path for name in ("commitlog", "consumequeue") for path in (root / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(paths)}


def state(config: StoreConfig, *, is_slave: bool = True) -> tuple[Any, ...]:
    """What a store serves, and where its log ends."""
    store = MessageStore.open(config, is_slave=is_slave)
    try:
        found = keys_found(store, "TopicTest", range(400))
        return store.max_physical_offset, store.last_record, extents(store), served(store), found
    finally:
        store.close_now()


class Stores:
    """A store, and the same store with later bytes."""

    def __init__(self, tmp_path: Path, *, before: int = 100, after: int = 150, log_file: int = 4096 * 3) -> None:
        self.short = StoreBench(tmp_path / "short")
        self.long = StoreBench(tmp_path / "long")
        for bench in (self.short, self.long):
            bench.config = dataclasses.replace(bench.config, mapped_file_size_commit_log=log_file)
        store = self.short.open()
        fill(store, before)
        self.offset = store.max_physical_offset
        store.close_now()
        shutil.copytree(self.short.root, self.long.root)
        store = self.long.open()
        fill(store, after, start=before)
        put(store, "OnlyLater", 0, b"x", key="later")
        put(store, "TopicTest", 7, b"a queue of its own", key="later")
        store.batch.commit()
        self.end = store.max_physical_offset
        self.cut_bytes = b"".join(bytes(view) for view in self._views(store))
        store.close_now()

    def _views(self, store: MessageStore) -> Iterator[memoryview]:
        at = self.offset
        while (view := store.log_part(at, 1 << 20)) is not None and len(view):
            yield view
            at += len(view)


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_after_a_cut_the_store_is_as_if_it_had_never_had_the_bytes(stores: Stores) -> None:
    copy = cut_log(stores.long.config, stores.offset, 7)
    assert copy == stores.long.root / PARTED / f"7-{stores.offset}"
    assert copy.read_bytes() == stores.cut_bytes
    assert len(stores.cut_bytes) == stores.end - stores.offset
    assert state(stores.long.config) == state(stores.short.config)
    assert state(stores.long.config, is_slave=False) == state(stores.short.config)
    assert files_of(stores.long.root) == files_of(stores.short.root)


def test_a_cut_store_is_opened_without_a_finding_and_goes_on(stores: Stores) -> None:
    cut_log(stores.long.config, stores.offset, 7)
    for bench in (stores.long, stores.short):
        store = bench.open()
        assert store.findings == []
        fill(store, 60, start=300)
        store.close_now()
    assert {key: len(found) for key, found in state(stores.long.config)[3].items()} == {
        key: len(found) for key, found in state(stores.short.config)[3].items()
    }


def test_a_log_that_lost_flushed_bytes_says_so_and_a_cut_log_does_not(stores: Stores) -> None:
    store = MessageStore.open(stores.long.config, is_slave=True)
    assert not store.has_lost_end
    store.close_now()
    cut_log(stores.long.config, stores.offset, 7)
    store = MessageStore.open(stores.long.config, is_slave=True)
    assert not store.has_lost_end
    store.close_now()
    os.truncate(stores.long.log_files[-1], 100)
    store = MessageStore.open(stores.long.config, is_slave=True)
    assert store.has_lost_end
    assert store.max_physical_offset < stores.offset
    store.close_now()
    store = MessageStore.open(stores.long.config, is_slave=True)
    assert not store.has_lost_end, "it was said once"
    store.close_now()


def test_a_log_that_ends_there_is_not_changed(stores: Stores) -> None:
    before = files_of(stores.long.root)
    assert cut_log(stores.long.config, stores.end, 7) is None
    assert cut_log(stores.long.config, stores.end + 4096, 7) is None
    assert files_of(stores.long.root) == before
    assert not (stores.long.root / PARTED).exists()


def test_a_place_where_no_record_begins_is_refused(stores: Stores) -> None:
    before = state(stores.long.config)
    for offset in (stores.offset + 1, stores.end - 1, -5):
        with pytest.raises(StoreError, match=r"no record that begins.*empty store"):
            cut_log(stores.long.config, offset, 7)
    assert state(stores.long.config) == before


@pytest.mark.parametrize("before", [0, 1, 37])
def test_a_cut_at_the_begin_and_in_the_middle_of_a_file(tmp_path: Path, before: int) -> None:
    stores = Stores(tmp_path, before=before, after=90)
    cut_log(stores.long.config, stores.offset, 1)
    assert state(stores.long.config)[:4] == state(stores.short.config)[:4]


def test_a_queue_whose_other_messages_were_deleted_goes_on_at_its_end(tmp_path: Path) -> None:
    """As of rocketmq#10417: after a cut, the first offset of a queue is not above its end."""
    bench = StoreBench(tmp_path / "store")
    bench.config = dataclasses.replace(bench.config, mapped_file_size_commit_log=4096)
    store = bench.open()
    fill(store, 9, queues=1, topic="Old")
    fill(store, 100)
    for path in bench.log_files:
        os.utime(path, (1, 1))
    asyncio.run(store.wait_flushed(store.max_physical_offset))
    assert store.delete_expired_files() > 2
    offset = store.max_physical_offset
    begin = store.min_physical_offset
    put(store, "Old", 0, b"cut")
    store.batch.commit()
    store.close_now()
    cut_log(bench.config, offset, 1)
    store = bench.open(mapped_file_size_commit_log=4096)
    assert store.findings == []
    assert (store.min_physical_offset, store.max_physical_offset) == (begin, offset)
    assert store.extent("Old", 0) == (9, 9)
    put(store, "Old", 0, b"next")
    store.batch.commit()
    assert store.extent("Old", 0) == (9, 10)
    assert [len(records) for key, records in served(store).items() if key[0] == "Old"] == [1]
    store.close_now()


def test_two_cuts_at_one_place_keep_both_parts(stores: Stores) -> None:
    first = cut_log(stores.long.config, stores.offset, 7)
    store = stores.long.open()
    fill(store, 20, start=1_000)
    store.close_now()
    second = cut_log(stores.long.config, stores.offset, 7)
    assert first is not None
    assert second is not None
    assert second != first
    assert first.read_bytes() == stores.cut_bytes
    assert second.read_bytes() != first.read_bytes()


# --- kills ----------------------------------------------------------------------------------------
@contextmanager
def images_of(root: Path, target: Path) -> Iterator[list[Path]]:
    """Copy a directory before each system call that changes a file: what a process killed there leaves."""
    images: list[Path] = []
    real = {name: getattr(os, name) for name in CHANGES}
    is_copying = False

    def wrapped(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_copying
            is_read = name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC)
            if not is_copying and not is_read:
                is_copying = True
                images.append(target / str(len(images)))
                shutil.copytree(root, images[-1])
                is_copying = False
            return real[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, wrapped(name))
        yield images


@pytest.mark.parametrize("is_slave", [True, False])
def test_a_cut_that_is_killed_at_any_system_call_can_be_done_again(tmp_path: Path, is_slave: bool) -> None:
    stores = Stores(tmp_path, before=40, after=60)
    wanted = state(stores.short.config)
    whole = state(stores.long.config)
    (tmp_path / "images").mkdir()
    with images_of(stores.long.root, tmp_path / "images") as images:
        cut_log(stores.long.config, stores.offset, 7)
    assert len(images) > 20
    lengths = set()
    for image in images:
        bench = StoreBench(image)
        bench.config = dataclasses.replace(stores.long.config, store_path_root_dir=str(image))
        end, _, _, found, _ = state(bench.config, is_slave=is_slave)
        lengths.add(end)
        assert stores.offset <= end <= stores.end
        for key, records in found.items():
            assert records == whole[3][key][: len(records)]
        copy = cut_log(bench.config, stores.offset, 7)
        assert copy is None or copy.read_bytes() == stores.cut_bytes
        assert (image / PARTED / f"7-{stores.offset}").read_bytes() == stores.cut_bytes
        assert state(bench.config) == wanted
        assert state(bench.config, is_slave=False) == wanted
        shutil.rmtree(image)
    assert len(lengths) > 2, "some kills leave a part of the bytes"


def test_a_full_disk_leaves_the_store_as_it_was(stores: Stores) -> None:
    before = state(stores.long.config)
    disk = MoodyDisk()
    disk.fails_with, disk.after_bytes = errno.ENOSPC, 100
    with pytest.raises(StoreError, match=r"space|full"):
        cut_log(stores.long.config, stores.offset, 7, disk=disk)
    assert state(stores.long.config) == before
    cut_log(stores.long.config, stores.offset, 7)
    assert state(stores.long.config) == state(stores.short.config)


# --- files beside the log -------------------------------------------------------------------------
def test_files_with_later_messages_are_removed_and_others_stay(stores: Stores) -> None:
    comet, config = stores.long.root / "comet", stores.long.root / "config"
    config.mkdir(exist_ok=True)
    for offset, stays in ((stores.offset, True), (stores.offset + 1, False)):
        producers = {"version": 1, "position": 5, "producers": {}, "end": offset}
        (comet / "producers.json").write_bytes(msgspec.json.encode(producers))
        (comet / "delayOffset.json").write_bytes(msgspec.json.encode({"offsets": {"1": 3}, "position": offset}))
        (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:3}}')
        (comet / "pop.bin").write_bytes(bytes(4) + msgspec.msgpack.encode([1, 0 if stays else 9, []]))
        store = stores.long.open()
        if store.max_physical_offset == stores.offset:
            fill(store, 10, start=1_000)
        store.close_now()
        cut_log(stores.long.config, stores.offset, 7)
        names = ("producers.json", "delayOffset.json", "pop.bin", "../config/delayOffset.json")
        assert [(comet / name).exists() for name in names] == [stays] * 4


def test_the_pop_log_and_its_snapshot_are_cut_together(tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "store")
    store = bench.open()
    for _ in range(3):
        put(store, POP_LOG_TOPIC, 0, b"entries")
    offset = store.batch.commit()
    put(store, POP_LOG_TOPIC, 0, b"entries")
    store.batch.commit()
    store.close_now()
    (bench.root / "comet" / "pop.bin").write_bytes(bytes(4) + msgspec.msgpack.encode([1, 3, []]))
    cut_log(bench.config, offset, 2)
    assert (bench.root / "comet" / "pop.bin").exists()


def test_the_timer_log_forgets_what_the_log_no_longer_has(stores: Stores) -> None:
    path = stores.long.root / "comet" / "timer" / "position.json"
    path.parent.mkdir()
    store = stores.long.open()
    put(store, TIMER_TOPIC, 0, b"delayed")
    store.batch.commit()
    store.close_now()
    ahead = TimerPosition(serial=1, log_offset=stores.end + 10, until_ms=1 << 42)
    path.write_bytes(msgspec.json.encode(ahead))
    cut_log(stores.long.config, stores.offset, 7)
    position = read_position(path)
    assert position is not None
    assert (position.serial, position.log_offset) == (0, stores.offset)
    assert position.until_ms < 1 << 42


def test_offsets_of_consumers_stay_within_their_queues(stores: Stores) -> None:
    """Consumers commit only what was confirmed, so no table needs a change."""
    cut_log(stores.long.config, stores.offset, 7)

    async def follow() -> None:
        store = MessageStore.open(stores.long.config, is_slave=True, readable=stores.offset)
        queue = store.queue("TopicTest", 0)
        assert queue.max_offset() == queue.committed
        store.replicated.append(stores.offset, stores.cut_bytes)
        store.confirm(stores.end)
        await store.close()

    asyncio.run(follow())
    assert state(stores.long.config)[0] == stores.end


def test_records_that_are_in_no_queue_may_be_the_last_ones(tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "store")
    store = bench.open()
    fill(store, 10)
    store.batch.put(store.queue("TopicTest", 0), NewRecord(b"half", b"", 0, 4, 1, HOST, HOST))
    offset = store.batch.commit()
    last = store.last_record
    fill(store, 10, start=10)
    store.close_now()
    cut_log(bench.config, offset, 1)
    store = bench.open()
    assert (store.max_physical_offset, store.last_record, store.findings) == (offset, last, [])
    store.close_now()
