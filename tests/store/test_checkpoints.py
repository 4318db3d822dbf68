"""Checkpoints: they cost what changed, a thread does the work, and what is deleted meanwhile stays deleted."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import until
from tests.store.conftest import StoreBench, fill, put, served

from cometmq.store import checkpoints
from cometmq.store.checkpoints import _MAX_PAUSE_SECONDS, _PAUSE, Checkpoints
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreFullError
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.position import PositionFile, load_position
from cometmq.testing import VirtualClock

TOPICS = 300


class WatchedDisk(Disk):
    """Notes which queue files are written and flushed, and by which thread."""

    def __init__(self) -> None:
        self.writers: list[tuple[str, threading.Thread]] = []
        self.flushed: list[str] = []
        self.on_flush: Callable[[], None] = lambda: None

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        if "/consumequeue/" in name:
            self.writers.append((name, threading.current_thread()))
        super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        if "/consumequeue/" in name:
            self.flushed.append(name)
            self.on_flush()


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of extents that each checkpoint has written into the position file."""
    rows: list[int] = []
    save = PositionFile.save

    def counted(file: PositionFile, position: Any, changed: Any) -> None:
        changed = list(changed)
        save(file, position, changed)
        rows.append(len(changed))

    monkeypatch.setattr(PositionFile, "save", counted)
    return rows


def put_into_all(store: MessageStore) -> None:
    for number in range(TOPICS):
        put(store, f"T{number}", 0, b"first")
    store.batch.commit()


async def checkpoint(store: MessageStore, saved: list[int]) -> None:
    """Wait until the checkpoint that the clock begins is made."""
    before = len(saved)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(lambda: len(saved) > before and not store._maintenance.checkpoints._saving)


async def test_a_checkpoint_after_one_message_touches_one_queue(bench: StoreBench, saved: list[int]) -> None:
    disk = WatchedDisk()
    store = bench.open(clock=VirtualClock(), disk=disk)
    store.start()
    put_into_all(store)
    await checkpoint(store, saved)
    assert saved[-1] == len(disk.flushed) == TOPICS
    disk.flushed.clear()
    disk.writers.clear()
    put(store, "T7", 0, b"second")
    store.batch.commit()
    await checkpoint(store, saved)
    assert saved[-1] == 1
    assert [Path(name).parent.parent.name for name in disk.flushed] == ["T7"]
    assert len(disk.writers) == 1
    position = load_position(bench.root / "comet" / "position.json")
    assert position is not None
    assert position.queues == {f"T{number}": {0: (0, 2 if number == 7 else 1)} for number in range(TOPICS)}
    assert position.offset == store.max_physical_offset


def test_before_many_files_are_flushed_the_file_system_is(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_FLUSH_ALL_FROM", TOPICS)

    class Counting(WatchedDisk):
        def flush_all(self, path: Path) -> None:
            super().flush_all(path)
            assert path == bench.root
            assert len(self.writers) == TOPICS, "everything is written before"
            self.flushed.append("all")

    disk = Counting()
    store = bench.open(disk=disk)
    put_into_all(store)
    store.close_now()
    assert disk.flushed[0] == "all"
    assert len(set(disk.flushed[1:])) == TOPICS, "each file is still flushed, since only that reports its errors"
    disk.flushed.clear()
    disk.writers.clear()
    few = bench.open(disk=disk)
    put(few, "T7", 0, b"second")
    few.batch.commit()
    few.close_now()
    assert [Path(name).parent.parent.name for name in disk.flushed] == ["T7"]


async def test_after_a_crash_the_first_checkpoint_waits_until_the_clients_are_back(
    bench: StoreBench, saved: list[int], tmp_path: Path
) -> None:
    put_into_all(bench.open())
    clock, disk = VirtualClock(), WatchedDisk()
    store = bench.crashed_copy(tmp_path / "crashed").open(clock=clock, disk=disk)
    store.start()
    disk.flushed.clear()
    for _ in range(4):
        clock.advance(1.0)
    assert not store._maintenance.checkpoints._saving
    await checkpoint(store, saved)
    assert len(disk.flushed) == TOPICS
    put(store, "T7", 0, b"second")
    store.batch.commit()
    clock.advance(60.0)  # the pause after a checkpoint
    await until(lambda: len(saved) == 2 and not store._maintenance.checkpoints._saving)
    assert len(disk.flushed) == TOPICS + 1
    store.close_now()


async def test_without_a_change_there_is_no_checkpoint(bench: StoreBench, saved: list[int]) -> None:
    clock = VirtualClock()
    store = bench.open(clock=clock)
    store.start()
    put_into_all(store)
    await checkpoint(store, saved)
    for _ in range(5):
        clock.advance(1.0)
    assert len(saved) == 1
    assert not store._maintenance.checkpoints._saving


async def test_no_queue_file_is_written_by_the_loop(bench: StoreBench, saved: list[int]) -> None:
    disk = WatchedDisk()
    store = bench.open(clock=VirtualClock(), disk=disk)
    store.start()
    put_into_all(store)
    await checkpoint(store, saved)
    assert len(disk.writers) == TOPICS
    assert not [name for name, thread in disk.writers if thread is threading.main_thread()]


async def test_messages_that_come_while_queues_are_written_have_their_units(
    bench: StoreBench, saved: list[int], tmp_path: Path
) -> None:
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)  # the thread has its first queues now
    for number in range(0, TOPICS, 3):
        put(store, f"T{number}", 0, b"second")
    store.batch.commit()
    await until(lambda: bool(saved) and not store._maintenance.checkpoints._saving)
    expected = served(store)
    assert served(bench.crashed_copy(tmp_path / "crashed").open()) == expected
    await checkpoint(store, saved)
    assert saved[-1] == TOPICS // 3
    store.close_now()
    assert served(bench.open()) == expected


async def test_a_stop_while_queues_are_written_is_clean(bench: StoreBench) -> None:
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    put(store, "T1", 0, b"second")
    store.batch.commit()
    expected = served(store)
    store.close_now()
    assert not (bench.root / "abort").exists()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


async def test_a_stop_before_the_loop_hears_that_a_checkpoint_failed_keeps_every_message(
    bench: StoreBench, saved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    await checkpoint(store, saved)
    put_into_all(store)
    begun, go_on = threading.Event(), threading.Event()

    def without_room(*_: object) -> None:
        begun.set()
        go_on.wait(30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(checkpoints, "save_checkpoint", without_room)
        assert isinstance(store.clock, VirtualClock)
        store.clock.advance(1.0)
        await until(begun.is_set)
        go_on.set()
        store._maintenance.checkpoints._worker.shutdown()  # the loop has no turn before the stop
    expected = served(store)
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


@pytest.fixture
def held_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Set when the thread has its first queues; it writes them when the other one is set."""
    begun, go_on = threading.Event(), threading.Event()
    write_files = Checkpoints._write_files

    def late(checkpoints: Checkpoints, parts: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return write_files(checkpoints, parts)

    monkeypatch.setattr(Checkpoints, "_write_files", late)
    yield begun, go_on
    go_on.set()


async def test_blocks_that_the_loop_writes_while_the_thread_has_the_queue_are_kept_by_a_stop(
    bench: StoreBench, saved: list[int], held_thread: tuple[threading.Event, threading.Event]
) -> None:
    begun, go_on = held_thread
    store = bench.open(clock=VirtualClock())
    store.start()
    fill(store, 10, queues=1)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(begun.is_set)
    fill(store, 400, queues=1, start=10, turn=410)
    assert not store.queue("TopicTest", 0).has_unwritten
    go_on.set()
    await until(lambda: bool(saved) and not store._maintenance.checkpoints._saving)
    expected = served(store)
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


async def test_a_file_that_retention_deletes_while_the_thread_has_its_units_stays_deleted(
    bench: StoreBench, held_thread: tuple[threading.Event, threading.Event], tmp_path: Path
) -> None:
    begun, go_on = held_thread
    store = bench.open(clock=VirtualClock())
    store.start()
    fill(store, 30, queues=1)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(begun.is_set)
    fill(store, 1_000, queues=1, start=30)
    store._flush.position = store.max_physical_offset
    assert store._maintenance.retention.delete_files(force=True) > 0
    queue = store.queue("TopicTest", 0)
    files = list(queue.files)
    assert files[0] > 0
    go_on.set()
    await until(lambda: not store._maintenance.checkpoints._saving)
    assert queue.files == files
    assert sorted(int(path.name) for path in queue.directory.iterdir()) == files
    expected = served(store)
    assert served(bench.crashed_copy(tmp_path / "crashed").open()) == expected
    store.close_now()
    assert served(bench.open()) == expected


async def test_a_queue_that_is_deleted_while_it_is_written_stays_deleted(
    bench: StoreBench, saved: list[int], held_thread: tuple[threading.Event, threading.Event]
) -> None:
    begun, deleted = held_thread
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(begun.is_set)
    store.delete_topic("T5")
    put(store, "T6", 0, b"second")
    store.delete_topic("T6")
    put(store, "T6", 0, b"of a new life")
    store.batch.commit()
    deleted.set()
    await until(lambda: bool(saved) and not store._maintenance.checkpoints._saving)
    assert not (bench.root / "consumequeue" / "T5").exists()
    await checkpoint(store, saved)
    position = load_position(bench.root / "comet" / "position.json")
    assert position is not None
    assert "T5" not in position.queues
    assert position.queues["T6"] == {0: (0, 1)}
    store.close_now()
    assert len(served(bench.open())["T6", 0]) == 1


async def test_a_checkpoint_waits_only_for_the_deletions_before_it(
    bench: StoreBench, saved: list[int], tmp_path: Path
) -> None:
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    await checkpoint(store, saved)
    put_into_all(store)
    expected = served(store)
    pending: list[Callable[[], None]] = []
    store.delete_topic("T5", when_durable=pending.append)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(lambda: bool(store._queues._until_durable))
    assert len(saved) == 1, "a crash would bring T5 back, and the checkpoint does not know its messages"
    assert served(bench.crashed_copy(tmp_path / "undone").open()) == expected
    store.delete_topic("T6", when_durable=pending.append)
    pending[0]()
    await until(lambda: len(saved) == 2)
    crashed = served(bench.crashed_copy(tmp_path / "crashed").open())
    assert crashed == {queue: bodies for queue, bodies in expected.items() if queue != ("T5", 0)}


async def test_a_deletion_that_a_crash_undoes_loses_no_units_that_the_thread_was_writing(
    bench: StoreBench, saved: list[int], held_thread: tuple[threading.Event, threading.Event], tmp_path: Path
) -> None:
    begun, deleted = held_thread
    store = bench.open(clock=VirtualClock())
    store.start()
    put_into_all(store)
    expected = served(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(begun.is_set)
    pending: list[Callable[[], None]] = []
    store.delete_topic("T5", when_durable=pending.append)
    deleted.set()
    await until(lambda: bool(store._queues._until_durable))
    assert not saved, "the files of T5 lack its message"
    assert served(bench.crashed_copy(tmp_path / "crashed").open()) == expected
    pending[0]()
    await until(lambda: len(saved) == 1)


def open_slow(bench: StoreBench) -> tuple[MessageStore, VirtualClock, Callable[[float], None]]:
    """A store, its clock, and a function that says how long the next flush of a queue takes."""
    clock = VirtualClock()
    disk = WatchedDisk()
    store = bench.open(clock=clock, disk=disk)
    store.start()
    checkpoints = store._maintenance.checkpoints

    def flush_takes(seconds: float) -> None:
        def pass_time() -> None:
            checkpoints._began -= seconds
            disk.on_flush = lambda: None

        disk.on_flush = pass_time

    return store, clock, flush_takes


@pytest.mark.parametrize(("seconds", "pause"), [(0.5, _PAUSE * 0.5), (1_000.0, _MAX_PAUSE_SECONDS)])
async def test_after_a_slow_checkpoint_comes_a_pause_of_twenty_times_its_length(
    seconds: float, pause: float, bench: StoreBench, saved: list[int]
) -> None:
    store, clock, flush_takes = open_slow(bench)
    fill(store, 1, queues=1)
    flush_takes(seconds)
    await checkpoint(store, saved)
    fill(store, 1, queues=1)
    ended = clock.monotonic()
    while not store._maintenance.checkpoints._saving:
        assert clock.monotonic() - ended < pause + 1
        clock.advance(1.0)
    assert clock.monotonic() - ended >= pause
    await until(lambda: len(saved) == 2)


async def test_a_pause_ends_when_a_gigabyte_would_have_to_be_read_again(
    bench: StoreBench, saved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.checkpoints._MAX_BYTES_BETWEEN", 10_000)
    store, clock, flush_takes = open_slow(bench)
    fill(store, 1, queues=1)
    flush_takes(1.0)
    await checkpoint(store, saved)
    fill(store, 1, queues=1)
    clock.advance(2.0)
    assert len(saved) == 1
    fill(store, 100, queues=1)
    await checkpoint(store, saved)


def test_the_position_file_is_what_one_encoding_of_all_would_be(bench: StoreBench) -> None:
    store = bench.open()
    put_into_all(store)
    store.close_now()
    position = load_position(bench.root / "comet" / "position.json")
    assert position is not None
    assert len(position.queues) == TOPICS
    log = bench.open()._log
    assert position.is_of(log)  # its checksum is right
    assert os.path.getsize(bench.root / "comet" / "position.json") > TOPICS * 10


async def test_one_failed_flush_among_thousands_saves_no_position(bench: StoreBench, saved: list[int]) -> None:
    class OneBadFile(WatchedDisk):
        def flush(self, fd: int) -> None:
            super().flush(fd)
            if "/T177/" in str(Path(f"/proc/self/fd/{fd}").readlink()):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = bench.open(clock=VirtualClock(), disk=OneBadFile())
    store.start()
    put_into_all(store)
    expected = served(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(lambda: store._maintenance.checkpoints.failed and not store._maintenance.checkpoints._saving)
    assert saved == []
    store.clock.advance(1.0)
    store.close_now()
    assert saved == []
    assert (bench.root / "abort").exists()
    assert served(bench.open()) == expected


async def test_a_disk_that_is_full_for_the_thread_takes_everything_once_it_has_room(
    bench: StoreBench, saved: list[int]
) -> None:
    class FullForQueues(WatchedDisk):
        is_full = True

        def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
            if self.is_full and "/consumequeue/T1" in str(Path(f"/proc/self/fd/{fd}").readlink()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, at)

    disk = FullForQueues()
    store = bench.open(clock=VirtualClock(), disk=disk)
    store.start()
    put_into_all(store)
    expected = served(store)
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(1.0)
    await until(lambda: not store._maintenance.checkpoints._saving)
    refusal = store.writable()
    assert isinstance(refusal, StoreFullError)
    assert served(store) == expected
    disk.is_full = False
    assert store.writable() is None
    await checkpoint(store, saved)
    assert saved == [TOPICS]
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


async def test_after_retention_queues_follow_a_few_in_each_turn(bench: StoreBench) -> None:
    store = bench.open(clock=VirtualClock())
    for number in range(4):
        for topic in range(TOPICS):
            put(store, f"T{topic}", 0, b"%d" % number * 100)
        store.batch.commit()
    store._flush.flush_now()
    queues = [of[0] for of in store.queues().values()]
    assert store._maintenance.retention.delete_files(force=True) > 0
    began = min(queue.min_offset() for queue in queues), max(queue.min_offset() for queue in queues)
    assert began[0] == 0
    assert began[1] > 0
    followed = [sum(queue.min_offset() > 0 for queue in queues)]
    while store._maintenance.retention._next_step is not None:
        await asyncio.sleep(0)
        followed.append(sum(queue.min_offset() > 0 for queue in queues))
    assert max(after - before for before, after in itertools.pairwise(followed)) <= 64
    assert followed[-1] == TOPICS
    kept = [record for records in served(store).values() for record in records]
    assert len(kept) == sum(queue.max_offset() - queue.min_offset() for queue in queues)
