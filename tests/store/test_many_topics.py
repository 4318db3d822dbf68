"""A store with 1,000 topics keeps every message: power cuts, full disks, stops and retention during a checkpoint,
and queue files that somebody changes, removes or replaces while it is stopped."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.helpers.waiting import until
from tests.store.conftest import SEGMENT_BYTES, Served, StoreBench, put, served

from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.testing import VirtualClock

TOPICS: Final = 1_000
CHECKPOINT_S: Final = 1.0


def put_into_all(store: MessageStore, body: bytes) -> None:
    """One message for each topic; a turn has a hundred."""
    for number in range(TOPICS):
        put(store, f"T{number}", number % 3, b"%b of %d" % (body, number))
        if number % 100 == 99:
            store.batch.commit()


def is_saving(store: MessageStore) -> bool:
    return store._maintenance.checkpoints._saving


async def checkpoint(store: MessageStore) -> None:
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(CHECKPOINT_S)
    assert is_saving(store)
    await until(lambda: not is_saving(store))


def queue_directory(bench: StoreBench, number: int) -> Path:
    return bench.root / "consumequeue" / f"T{number}" / str(number % 3)


class StoppableDisk(Disk):
    """Stops a thread before its work on a queue's file with a number, until it may go on or fails as told.

    And remembers what a power cut would leave of the files of queues and log: what was flushed.
    """

    def __init__(self) -> None:
        self.flushed: dict[Path, bytes] = {}
        self.left = {"write": 1 << 60, "flush": 1 << 60}
        self.stopped = threading.Event()
        self.go_on = threading.Event()
        self.fails_with = 0

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        self._come_to("write", self._path(fd))
        super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        path = self._path(fd)
        self._come_to("flush", path)
        if path.parent.name == "commitlog" or "consumequeue" in path.parts:
            self.flushed[path] = path.read_bytes()

    @staticmethod
    def _path(fd: int) -> Path:
        return Path(f"/proc/self/fd/{fd}").readlink()

    def _come_to(self, step: str, path: Path) -> None:
        if "consumequeue" not in path.parts:
            return
        self.left[step] -= 1
        if self.left[step] < 0:
            self.stopped.set()
            if self.fails_with:
                raise OSError(self.fails_with, os.strerror(self.fails_with))
            if threading.current_thread() is not threading.main_thread():  # which lets the other go on
                self.go_on.wait(30)

    def cut_power(self, bench: StoreBench, target: Path) -> StoreBench:
        """The store as a power cut would leave it; only files of queues and log lose what was not flushed."""
        copy = bench.crashed_copy(target)
        shutil.rmtree(copy.root / "consumequeue")
        for path, content in self.flushed.items():
            place = copy.root / path.relative_to(bench.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return copy


@pytest.fixture
def disk() -> StoppableDisk:
    return StoppableDisk()


async def opened(bench: StoreBench, disk: Disk) -> MessageStore:
    """A store that has had a checkpoint with a message in each topic."""
    store = bench.open(clock=VirtualClock(), disk=disk)
    store.start()
    put_into_all(store, b"first")
    await checkpoint(store)
    return store


@pytest.mark.parametrize("known", ["lost", "kept"])
async def test_a_power_cut_that_takes_what_was_not_flushed_takes_no_flushed_message(
    known: str, bench: StoreBench, disk: StoppableDisk, tmp_path: Path
) -> None:
    store = await opened(bench, disk)
    put_into_all(store, b"second")
    for number in range(TOPICS, TOPICS + 500):
        put(store, f"T{number}", 0, b"first of a new topic")
    position = store.batch.commit()
    flushed: list[object] = []
    store.when_flushed(position, flushed.append)
    await until(lambda: flushed)
    expected = served(store)
    disk.left["flush"] = 800
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(60)
    await until(disk.stopped.is_set)
    cut = disk.cut_power(bench, tmp_path / "cut")
    disk.go_on.set()
    if known == "lost":
        (cut.root / "comet" / "queueFiles.json").unlink()
    again = cut.open()
    assert served(again) == expected
    again.close_now()
    assert cut.open().findings == []
    cut.close_all()


async def test_a_disk_that_is_full_while_the_thread_writes_and_has_room_again_costs_nothing(
    bench: StoreBench, disk: StoppableDisk, tmp_path: Path
) -> None:
    store = await opened(bench, disk)
    put_into_all(store, b"second")
    for number in range(TOPICS, TOPICS + 500):
        put(store, f"T{number}", 0, b"first of a new topic")
    store.batch.commit()
    expected = served(store)
    disk.left["write"], disk.fails_with = 900, errno.ENOSPC
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(60)
    await until(disk.stopped.is_set)
    await until(lambda: not is_saving(store))
    assert store._maintenance.refusal() is not None
    assert served(store) == expected
    crashed = bench.crashed_copy(tmp_path / "crashed")
    assert served(crashed.open()) == expected
    crashed.close_all()
    disk.left["write"] = 1 << 60
    assert store._maintenance.refusal() is None
    store.clock.advance(60)
    await until(lambda: not is_saving(store))
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


@pytest.mark.parametrize("step", ["write", "flush"])
async def test_a_stop_during_a_checkpoint_is_clean_and_keeps_all(
    step: str, bench: StoreBench, disk: StoppableDisk
) -> None:
    store = await opened(bench, disk)
    put_into_all(store, b"second")
    disk.left[step] = 700
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(60)
    await until(disk.stopped.is_set)
    put_into_all(store, b"third")
    expected = served(store)
    disk.go_on.set()
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


async def test_retention_during_a_checkpoint_takes_only_what_it_should(
    bench: StoreBench, disk: StoppableDisk, tmp_path: Path
) -> None:
    store = await opened(bench, disk)
    for body in (b"second", b"third"):
        put_into_all(store, body)
    disk.left["write"] = 700
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(60)
    await until(disk.stopped.is_set)
    store._flush.position = store.max_physical_offset
    assert store._maintenance.retention.delete_files(force=True) > 0
    disk.go_on.set()
    await until(lambda: not is_saving(store) and not store._maintenance.retention._following)
    log_min = store.min_physical_offset
    for queues in store.queues().values():
        for queue in queues.values():
            assert queue.min_offset() == queue.offset_of_log(log_min)
    expected = served(store)
    crashed = bench.crashed_copy(tmp_path / "crashed")
    assert served(crashed.open()) == expected
    crashed.close_all()
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


# --- while it is stopped ----------------------------------------------------------------------------
def _change(queue: Path, older: Path) -> None:
    """Other bytes, with the length and the times that were there."""
    path = min(queue.iterdir())
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xee" * 60)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _cut(queue: Path, older: Path) -> None:
    os.truncate(min(queue.iterdir()), 30)


def _remove(queue: Path, older: Path) -> None:
    min(queue.iterdir()).unlink()


def _remove_queue(queue: Path, older: Path) -> None:
    shutil.rmtree(queue)


def _remove_topic(queue: Path, older: Path) -> None:
    shutil.rmtree(queue.parent)


def _older_file(queue: Path, older: Path) -> None:
    """The file of a backup, with the length and the times of the newer one."""
    path = min(queue.iterdir())
    stat = path.stat()
    path.unlink()
    shutil.copy(older / path.name, path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _older_bytes(queue: Path, older: Path) -> None:
    """The same, written over it."""
    path = min(queue.iterdir())
    stat = path.stat()
    with path.open("r+b") as file:
        file.write((older / path.name).read_bytes())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _older_topic(queue: Path, older: Path) -> None:
    shutil.rmtree(queue.parent)
    shutil.copytree(older.parent, queue.parent)


CHANGES: tuple[Callable[[Path, Path], None], ...] = (
    _change,
    _cut,
    _remove,
    _remove_queue,
    _remove_topic,
    _older_file,
    _older_bytes,
    _older_topic,
)


def stopped(bench: StoreBench, backup: Path) -> Served:
    """A store that was stopped cleanly, and a backup of it from the stop before."""
    store = bench.open()
    put_into_all(store, b"first")
    store.close_now()
    subprocess.run(["cp", "-a", bench.root, backup], check=True)
    store = bench.open()
    for body in (b"second", b"third", b"fourth"):
        put_into_all(store, body)
    everything = served(store)
    store.close_now()
    return everything


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_queue_files_that_are_changed_or_older_after_the_stop_are_noticed_in_each_topic(
    killed: bool, bench: StoreBench, tmp_path: Path
) -> None:
    expected = stopped(bench, tmp_path / "backup")
    if killed:
        (bench.root / "abort").touch()
    for number in range(0, TOPICS, 20):
        queue = queue_directory(bench, number)
        older = tmp_path / "backup" / queue.relative_to(bench.root)
        CHANGES[number // 20 % len(CHANGES)](queue, older)
    again = bench.open()
    assert served(again) == expected
    again.close_now()
    assert bench.open().findings == []


def test_a_copy_of_a_store_has_the_same_messages_and_goes_on(
    bench: StoreBench, bench_at: Callable[[Path], StoreBench], tmp_path: Path
) -> None:
    expected = stopped(bench, tmp_path / "backup")
    subprocess.run(["cp", "-a", bench.root, tmp_path / "copy"], check=True)
    copy = bench_at(tmp_path / "copy")
    for messages in (5, 6):
        store = copy.open()
        assert store.findings == []
        assert served(store) == expected
        put_into_all(store, b"more")
        expected = served(store)
        assert {len(records) for records in expected.values()} == {messages}
        store.close_now()


def test_an_older_store_in_the_place_of_a_newer_one_is_the_older_one(bench: StoreBench, tmp_path: Path) -> None:
    everything = stopped(bench, tmp_path / "backup")
    shutil.rmtree(bench.root)
    subprocess.run(["cp", "-a", tmp_path / "backup", bench.root], check=True)
    store = bench.open()
    assert store.findings == []
    assert served(store) == {key: records[:1] for key, records in everything.items()}


def test_an_older_store_copied_over_a_newer_one_takes_only_what_it_is_written_over(
    bench: StoreBench, tmp_path: Path
) -> None:
    """The log's last file of then ends where the log did; those behind it are still there."""
    everything = stopped(bench, tmp_path / "backup")
    end = 1 + max(int.from_bytes(records[0][28:36], "big") for records in everything.values())
    lost = range(end, end + SEGMENT_BYTES - end % SEGMENT_BYTES)
    subprocess.run(["cp", "-a", f"{tmp_path / 'backup'}/.", bench.root], check=True)
    store = bench.open()
    for (topic, queue_id), records in everything.items():
        queue = store.queue(topic, queue_id)
        assert queue.max_offset() == len(records)
        kept = [record for record in records if int.from_bytes(record[28:36], "big") not in lost]
        assert b"".join(_all_bytes(store, queue)) == b"".join(kept)


def _all_bytes(store: MessageStore, queue: ConsumeQueue) -> Iterator[bytes | memoryview]:
    offset = queue.min_offset()
    while offset < queue.max_offset():
        result = store.get_message(queue, offset, 32)
        yield from result.chunks
        offset = result.next_begin_offset
