"""A full disk, to the last byte, and a disk that fails: producers are told, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest
from tests.helpers.waiting import until
from tests.store.conftest import SEGMENT_BYTES, StoreBench, fill, put, served

from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError, StoreFailedError, StoreFullError
from cometmq.store.log.commit_log import RESERVE_BYTES, CommitLog
from cometmq.store.log.mapped_file import first_data
from cometmq.store.message_store import MessageStore


class FullDisk(Disk):
    """A disk with ``room`` bytes left; a write takes what fits and then fails, as pwrite does."""

    def __init__(self) -> None:
        self.room = 1 << 40

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if len(data) > self.room:
            super().write(fd, data[: self.room], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, at)

    def allocate(self, fd: int, at: int, size: int) -> None:
        if size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, at, size)


@pytest.mark.parametrize("room", [0, 1, 7, 8, 90, 250, 1000])
def test_a_turn_without_room_fails_whole(bench: StoreBench, room: int) -> None:
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 30)
    before = served(store)
    end = store.max_physical_offset
    queue = store.queue("TopicTest", 0)
    offset = queue.next_offset

    disk.room = room
    for number in range(8):
        put(store, "TopicTest", 0, b"lost %d" % number * 30, key="lost")
    with pytest.raises(StoreFullError, match="free some space"):
        store.batch.commit()
    assert (store.max_physical_offset, queue.next_offset, queue.max_offset()) == (end, offset, offset)
    assert served(store) == before
    assert store.query("TopicTest", "lost", 32, 0, 1 << 62).records == []

    disk.room = 1 << 40
    put(store, "TopicTest", 0, b"again")
    store.batch.commit()
    assert queue.max_offset() == offset + 1
    assert len(served(store)["TopicTest", 0]) == len(before["TopicTest", 0]) + 1


def test_what_a_failed_turn_left_is_no_record_after_a_kill(bench: StoreBench, tmp_path: Path) -> None:
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 30)
    before = served(store)
    disk.room = 500  # some whole records of the turn get onto the disk
    for _ in range(8):
        put(store, "TopicTest", 0, b"refused")
    with pytest.raises(StoreFullError):
        store.batch.commit()
    copy = bench.crashed_copy(tmp_path / "copy")
    assert served(copy.open()) == before
    copy.close_all()


def test_a_failed_turn_is_cleared_whole_so_that_a_shorter_one_uncovers_none_of_it(
    bench: StoreBench, tmp_path: Path
) -> None:
    """Behind a shorter turn, whole records of the failed one would stand in their own places."""
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 30)
    disk.room = 1000
    for _ in range(8):
        put(store, "TopicTest", 0, b"refused " * 8)
    with pytest.raises(StoreFullError):
        store.batch.commit()
    disk.room = 1 << 40
    put(store, "TopicTest", 0, b"taken")
    end = store.batch.commit()
    expected = served(store)
    copy = bench.crashed_copy(tmp_path / "copy")
    assert not any(copy.log_files[0].read_bytes()[end:])
    again = copy.open()
    assert served(again) == expected
    assert again.max_physical_offset == end
    copy.close_all()


def test_while_a_failed_turn_cannot_be_cleared_nothing_more_is_written(bench: StoreBench, tmp_path: Path) -> None:
    class StuckDisk(Disk):
        writes_left = 1 << 30

        def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
            if self.writes_left <= 0:
                super().write(fd, bytes(data)[:400] if any(data) else b"", at)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().write(fd, data, at)

    disk = StuckDisk()
    store = bench.open(disk=disk)
    fill(store, 10)
    expected = served(store)
    disk.writes_left = 0
    for _ in range(4):
        put(store, "TopicTest", 0, b"refused " * 8)
    with pytest.raises(StoreFailedError):
        store.batch.commit()
    put(store, "TopicTest", 0, b"refused, too")
    with pytest.raises(StoreFailedError):
        store.batch.commit()
    disk.writes_left = 1 << 30
    put(store, "TopicTest", 0, b"taken")
    end = store.batch.commit()
    assert not any(bench.log_files[0].read_bytes()[end:])
    copy = bench.crashed_copy(tmp_path / "copy")
    again = copy.open()
    assert sum(map(len, served(again).values())) == sum(map(len, expected.values())) + 1
    copy.close_all()


def store_one(store: MessageStore) -> StoreError | None:
    put(store, "TopicTest", 0, b"x" * 2000)
    try:
        store.batch.commit()
    except StoreError as error:
        return error
    return None


def test_no_room_for_the_next_log_file(bench: StoreBench) -> None:
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 30)
    disk.room = SEGMENT_BYTES - 1
    stored = 0
    while store_one(store) is None:
        stored += 1
    assert stored
    before = served(store)
    assert isinstance(store_one(store), StoreFullError)
    assert served(store) == before
    disk.room = 1 << 40
    fill(store, 200, start=1000)
    after = served(store)
    store.close_now()
    assert served(bench.open()) == after


def test_no_room_for_units_refuses_messages_but_serves_them(bench: StoreBench) -> None:
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 30)
    store._maintenance.write_derived()
    put(store, "TopicTest", 0, b"units wait")
    store.batch.commit()
    disk.room = 0
    assert not store._maintenance.write_derived()
    assert isinstance(store.writable(), StoreFullError)
    put(store, "TopicTest", 0, b"refused")
    with pytest.raises(StoreFullError):
        store.batch.commit()
    assert len(served(store)["TopicTest", 0]) == 11
    disk.room = 1 << 40
    assert store.writable() is None
    put(store, "TopicTest", 0, b"accepted")
    store.batch.commit()
    assert len(served(store)["TopicTest", 0]) == 12


def test_a_full_disk_is_in_the_log_once_however_many_messages_are_refused(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """The log may be on the same disk, and each refused message tries to write again."""
    caplog.set_level("INFO", "cometmq.store.maintenance")
    disk = FullDisk()
    store = bench.open(disk=disk)
    for _ in range(2):
        fill(store, 30)
        disk.room = 0
        assert not store._maintenance.write_derived()
        for _ in range(5):
            assert isinstance(store.writable(), StoreFullError)
        disk.room = 1 << 40
        assert store.writable() is None
    of_units, again = caplog.messages[:2]
    assert "messages are refused until it succeeds" in of_units
    assert again == "queue files and index can be written again, so messages are accepted"
    assert caplog.messages[2:] == [of_units, again]


def fill_up(path: Path) -> None:
    """Write until not one byte more fits."""
    with path.open("ab", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"b" * size):
                    pass


def test_a_real_disk_full_to_the_last_byte(small_disk: Path) -> None:
    bench = StoreBench(small_disk / "store")
    store = bench.open()
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * 200_000)
    errors: list[StoreError] = []
    acknowledged = 0
    while len(errors) < 20:
        try:
            put(store, "TopicTest", acknowledged % 3, b"%06d" % acknowledged * 40, key=f"key-{acknowledged}")
            store.batch.commit()
            acknowledged += 1
        except StoreError as error:
            errors.append(error)
    assert all(isinstance(error, StoreFullError) for error in errors)
    fill_up(ballast)
    assert sum(map(len, served(store).values())) == acknowledged
    full = served(store)

    # A kill now, and a start on the full disk: everything acknowledged is there.
    store._maintenance._opened.lock.release()
    again = bench.open()
    assert served(again) == full
    ballast.unlink()
    put(again, "TopicTest", 0, b"there is room")
    again.batch.commit()
    assert sum(map(len, served(again).values())) == acknowledged + 1
    again.close_now()
    store._closed = True  # the killed one
    third = bench.open()
    assert sum(map(len, served(third).values())) == acknowledged + 1
    third.close_now()


class FailingFlush(Disk):
    """A disk whose flushes fail once told to, and then pretend to work, as after an I/O error on Linux."""

    def __init__(self) -> None:
        self.failures = 0

    def flush(self, fd: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().flush(fd)


async def test_after_a_failed_flush_nothing_is_acknowledged_until_reopened(bench: StoreBench) -> None:
    import asyncio

    disk = FailingFlush()
    store = bench.open(disk=disk, flush_disk_type="SYNC_FLUSH")
    fill(store, 10)
    loop = asyncio.get_running_loop()

    async def flushed(position: int) -> StoreError | None:
        done: asyncio.Future[StoreError | None] = loop.create_future()
        store.when_flushed(position, done.set_result)
        return await asyncio.wait_for(done, 60)

    assert await flushed(store.max_physical_offset) is None
    disk.failures = 1
    put(store, "TopicTest", 0, b"not kept")
    position = store.batch.commit()
    assert isinstance(await flushed(position), StoreFailedError)
    # The disk would now say yes again; it is not believed.
    assert isinstance(await flushed(position), StoreFailedError)
    assert isinstance(store.writable(), StoreFailedError)
    assert store.flushed_position < position
    put(store, "TopicTest", 0, b"refused")
    with pytest.raises(StoreFailedError, match="restart the broker"):
        store.batch.commit()
    assert served(store)
    store.close_now()
    again = bench.open()
    assert any(line.startswith("abort: ") for line in again.findings)
    put(again, "TopicTest", 0, b"accepted")
    again.batch.commit()


async def test_one_flush_covers_everything_written_before_it(bench: StoreBench) -> None:
    import asyncio

    class CountingDisk(Disk):
        flushes = 0

        def flush(self, fd: int) -> None:
            CountingDisk.flushes += 1
            super().flush(fd)

    store = bench.open(disk=CountingDisk())
    answers: list[StoreError | None] = []
    done = asyncio.Event()
    for number in range(20):
        put(store, "TopicTest", 0, b"%d" % number)
        position = store.batch.commit()

        def answered(error: StoreError | None) -> None:
            answers.append(error)
            if len(answers) == 20:
                done.set()

        store.when_flushed(position, answered)
    await asyncio.wait_for(done.wait(), 60)
    assert answers == [None] * 20
    assert CountingDisk.flushes <= 2
    assert store.flushed_position == store.max_physical_offset


async def test_after_a_failed_flush_of_a_queue_its_messages_are_derived_again(bench: StoreBench) -> None:
    """A later flush would succeed and prove nothing, so the stop does not count as a clean one."""
    disk = FailingFlush()
    store = bench.open(disk=disk)
    fill(store, 30)
    store.close_now()
    position = (bench.root / "comet" / "position.json").read_bytes()
    store = bench.open(disk=disk)
    fill(store, 30, start=30)
    expected = served(store)
    store._log.flush(0, store.max_physical_offset)
    store._flush.position = store.max_physical_offset
    disk.failures = 1
    store.close_now()
    assert (bench.root / "abort").exists()
    assert (bench.root / "comet" / "position.json").read_bytes() == position
    again = bench.open()
    assert served(again) == expected


async def test_a_checkpoint_within_a_turn_knows_only_what_was_committed(bench: StoreBench) -> None:
    disk = FullDisk()
    store = bench.open(disk=disk)
    fill(store, 5)
    put(store, "TopicTest", 0, b"refused", key="refused")
    assert store._maintenance.write_derived()
    assert len(store.query("TopicTest", "key-4", 32, 0, 1 << 62).records) == 1
    disk.room = 0
    with pytest.raises(StoreFullError):
        store.batch.commit()
    disk.room = 1 << 40
    put(store, "TopicTest", 0, b"in the same place", key="accepted")
    store.batch.commit()
    assert store.query("TopicTest", "refused", 32, 0, 1 << 62).records == []
    assert len(store.query("TopicTest", "accepted", 32, 0, 1 << 62).records) == 1


async def test_a_start_without_room_for_the_first_log_file_says_so(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    disk.room = SEGMENT_BYTES - 1
    store = bench.open(disk=disk)
    store.start()
    await until(lambda: caplog.messages)
    (message,) = caplog.messages
    assert "no space on the disk for the next log file of 65,536 bytes" in message
    await store.close()


def test_space_of_the_first_file_is_reserved_as_it_is_needed(tmp_path: Path) -> None:
    disk = FullDisk()
    log = CommitLog(tmp_path, 4 * RESERVE_BYTES, disk)
    try:
        first = log.next_segment()

        def taken() -> int:
            return os.stat(first.path).st_blocks * 512

        assert first.path.stat().st_size == 4 * RESERVE_BYTES
        assert taken() < 1.5 * RESERVE_BYTES
        log.write(first, RESERVE_BYTES - 10, b"x" * 20)
        assert RESERVE_BYTES < taken() < 2.5 * RESERVE_BYTES
        disk.room = RESERVE_BYTES - 1
        with pytest.raises(StoreFullError, match="free some space"):
            log.write(first, 3 * RESERVE_BYTES - 10, b"y" * 20)
        assert first_data(first.fd, 2 * RESERVE_BYTES, first.size) == first.size, "nothing was written"
        disk.room = 1 << 40
        log.write(first, first.end - 10, b"z" * 10)
        assert first.reserved == first.size
        second = log.next_segment()
        assert os.stat(second.path).st_blocks * 512 >= second.size, "the later ones are reserved whole"
    finally:
        log.close()


def test_a_new_store_without_room_is_refused_and_opens_once_there_is_room(small_disk: Path) -> None:
    """Its lock is released, so that the same process can open it."""
    bench = StoreBench(small_disk / "store")
    bench.root.mkdir()
    ballast = small_disk / "ballast"
    fill_up(ballast)
    with pytest.raises(StoreError, match=r"No space left on device \(free some disk space\)"):
        bench.open()
    ballast.unlink()
    bench.open().close_now()
