"""Old files go in time, young ones stay; a disk that fills up makes room or refuses. The clock is moved."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import threading
from pathlib import Path

import pytest
from tests.helpers.waiting import until
from tests.store.conftest import StoreBench, fill, put, served
from tests.store.disks import MeteredDisk

from cometmq.store.errors import StoreFullError
from cometmq.store.message_store import GetMessageStatus, MessageStore
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.testing import VirtualClock


def clock_at(hour: int) -> VirtualClock:
    now = datetime.datetime.now().astimezone().replace(hour=hour, minute=0, second=0, microsecond=0)
    return VirtualClock(int(now.timestamp() * 1000))


def age(store: MessageStore, hours: float, files: int) -> None:
    """Make the first log files so many hours older than now is."""
    then = store.clock.now_ms() / 1000 - hours * 3600
    for segment in store._log.segments[:files]:
        os.utime(segment.path, (then, then))


@pytest.fixture
def disk() -> MeteredDisk:
    return MeteredDisk()


async def filled(bench: StoreBench, clock: VirtualClock, disk: MeteredDisk) -> MessageStore:
    store = bench.open(clock=clock, disk=disk)
    fill(store, 900)
    assert len(store._log.segments) >= 4
    store._log.flush(0, store.max_physical_offset)
    store._flush.position = store.max_physical_offset
    age(store, 0, 99)
    store.start()
    return store


async def test_files_past_their_time_go_at_the_hour(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(3)
    store = await filled(bench, clock, disk)
    age(store, 73, 2)
    first_kept = store._log.segments[2].start
    queue = store.queue("TopicTest", 0)
    clock.advance(1800)
    assert store.min_physical_offset == 0, "not the hour"
    age(store, 73, 2)
    clock.advance(1900)
    assert store.min_physical_offset == first_kept
    assert queue.min_offset() > 0
    unit = queue.unit(queue.min_offset())
    assert unit is not None
    assert unit[0] >= first_kept
    assert store.get_message(queue, 0, 32).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.get_message(queue, 0, 32).next_begin_offset == queue.min_offset()
    kept = served(store)
    assert min((bench.root / "consumequeue" / "TopicTest" / "0").iterdir()).name != "0" * 20
    store.close_now()
    again = bench.open(clock=clock, disk=disk)
    assert again.findings == []
    assert served(again) == kept
    assert again.min_physical_offset == first_kept


async def test_young_files_stay(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(4)
    store = await filled(bench, clock, disk)
    age(store, 71, 3)
    clock.advance(60)
    assert store.min_physical_offset == 0


async def test_the_last_file_never_goes(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(4)
    store = await filled(bench, clock, disk)
    age(store, 1000, 99)
    clock.advance(60)
    assert len(store._log.segments) == 1
    assert served(store)


async def test_a_fuller_disk_deletes_at_any_hour(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(12)
    store = await filled(bench, clock, disk)
    age(store, 73, 1)
    clock.advance(30)
    assert store.min_physical_offset == 0
    disk.ratio = 0.76
    clock.advance(30)
    assert store.min_physical_offset == store.config.mapped_file_size_commit_log


@pytest.mark.parametrize("forcibly", [True, False])
async def test_a_very_full_disk_deletes_before_the_time(bench: StoreBench, disk: MeteredDisk, forcibly: bool) -> None:
    clock = clock_at(12)
    store = bench.open(clock=clock, disk=disk, clean_file_forcibly_enable=forcibly)
    fill(store, 900)
    store._log.flush(0, store.max_physical_offset)
    store._flush.position = store.max_physical_offset
    age(store, 0, 99)
    store.start()
    disk.ratio = 0.86
    clock.advance(30)
    assert (store.min_physical_offset > 0) == forcibly


async def test_a_full_disk_refuses_messages_until_it_has_room(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(12)
    store = await filled(bench, clock, disk)
    assert store.writable() is None
    disk.ratio = 0.91
    clock.advance(10)
    assert isinstance(store.writable(), StoreFullError)
    assert served(store)
    disk.ratio = 0.5
    clock.advance(10)
    assert store.writable() is None


async def test_a_full_disk_of_the_queues_counts_as_the_logs_does(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(12)
    store = await filled(bench, clock, disk)
    age(store, 73, 1)
    disk.queue_ratio = 0.76
    clock.advance(30)
    assert store.min_physical_offset == store.config.mapped_file_size_commit_log
    disk.queue_ratio = 0.91
    clock.advance(10)
    refusal = store.writable()
    assert isinstance(refusal, StoreFullError)
    assert str(bench.root) in str(refusal)


async def test_index_files_go_with_the_log(bench: StoreBench, disk: MeteredDisk) -> None:
    clock = clock_at(4)
    store = await filled(bench, clock, disk)
    store._maintenance.write_index()
    before = len(list((bench.root / "index").iterdir()))
    age(store, 1000, 99)
    clock.advance(60)
    assert len(list((bench.root / "index").iterdir())) < before


async def test_a_reader_of_a_queue_that_has_yet_to_follow_is_led_to_its_first_message(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues follow the log's beginning in rounds of the loop; nothing is missing before theirs comes."""
    topics = [f"T{number}" for number in range(200)]
    store = bench.open()
    for _ in range(3):
        for topic in topics:
            fill(store, 7, topic=topic, queues=1)
    store.close_now()
    store = bench.open()
    assert store._maintenance.retention.delete_files(force=True) > 0
    behind = [queue for topic in topics if not (queue := store.queue(topic, 0)).min_offset()]
    assert len(behind) > 100
    for queue in behind:
        offset, count = 0, 0
        while offset < queue.max_offset():
            result = store.get_message(queue, offset, 32)
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
            count += result.count
        assert count == queue.max_offset() - queue.offset_of_log(store.min_physical_offset)
        assert not queue.missing
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_log_file_does_not_go_before_the_units_of_its_records_are_written(
    bench: StoreBench, tmp_path: Path
) -> None:
    """After a kill a queue goes on behind its last unit; a record far behind that would not be believed."""
    store = bench.open(clock=VirtualClock())
    store.start()
    fill(store, 1, queues=1, topic="Rare")
    store._maintenance.write_derived()
    store._maintenance.checkpoints.save_now()
    for number in range(1, 8):
        fill(store, 200, topic="Busy", start=200 * number)
        fill(store, 1, queues=1, topic="Rare", start=number)
    store._flush.position = store.max_physical_offset
    assert store._maintenance.retention.delete_files(force=True) > 0
    expected = served(store)
    assert len(expected["Rare", 0]) < 7
    crashed = bench.crashed_copy(tmp_path / "crashed")
    assert served(crashed.open()) == expected
    crashed.close_all()


async def test_the_space_of_a_deleted_log_file_is_freed_in_a_thread_after_its_last_slice(
    bench: StoreBench, disk: MeteredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing 1 GiB takes a quarter of a second, which would hold up every request."""
    freed: list[str] = []
    close = os.close

    def is_deleted(fd: int) -> bool:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return False
        return target.startswith(str(store.config.commit_log)) and target.endswith("(deleted)")

    def note(fd: int) -> None:
        if is_deleted(fd):
            freed.append(threading.current_thread().name)
        close(fd)

    clock = clock_at(3)
    store = await filled(bench, clock, disk)
    last = store._log.segments[0].view[:100]
    before = bytes(last)
    age(store, 73, 1)
    monkeypatch.setattr(os, "close", note)
    assert store.delete_expired_files() == 1
    assert freed == [threading.main_thread().name], "the store's own descriptor"
    assert bytes(last) == before
    last.release()
    del last
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "cometmq-free-space":
            thread.join()
    assert freed[1:] == ["cometmq-free-space"]
    assert not any(is_deleted(int(name)) for name in os.listdir("/proc/self/fd"))


async def test_a_deletion_looks_only_at_queues_whose_first_message_it_deletes(
    bench: StoreBench, disk: MeteredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look opens a queue's file: with 100,000 queues, that took 5 s of processor time for each log file."""
    store = bench.open(clock=clock_at(3), disk=disk)
    fill(store, 900)
    assert len(store._log.segments) >= 4
    young = [f"Young{number}" for number in range(20)]
    for topic in young:
        put(store, topic, 0, b"young")
    store.batch.commit()
    fill(store, 900)
    store._flush.position = store.max_physical_offset
    store.start()
    first = store.queue(young[0], 0).unit(0)
    assert first is not None
    looked: list[str] = []
    offset_of_log = ConsumeQueue.offset_of_log

    def noted(queue: ConsumeQueue, log_offset: int) -> int:
        looked.append(queue.topic)
        return offset_of_log(queue, log_offset)

    monkeypatch.setattr(ConsumeQueue, "offset_of_log", noted)
    seen = []
    while store.min_physical_offset <= first[0]:
        age(store, 73, 1)
        looked.clear()
        assert store.delete_expired_files() == 1
        await until(lambda: not store._maintenance.retention._following)
        seen.append(set(looked))
        for queues in store.queues().values():
            for queue in queues.values():
                assert queue.min_offset() == offset_of_log(queue, store.min_physical_offset)
    assert len(seen) >= 4
    assert seen[0] == {"TopicTest", *young}, "not known yet"
    assert all(one == {"TopicTest"} for one in seen[1:-1])
    assert seen[-1] == {"TopicTest", *young}, "their messages were in the deleted file"
    store.batch.commit()
    put(store, young[0], 0, b"again")
    store.batch.commit()
    assert served(store)[young[0], 0]


async def test_what_a_deletion_has_found_is_known_after_a_restart(
    bench: StoreBench, disk: MeteredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.recovery.known_files._MANY_TOPICS", 1)
    store = bench.open(clock=clock_at(3), disk=disk)
    fill(store, 900)
    for number in range(20):
        put(store, f"Young{number}", 0, b"young")
    store.batch.commit()
    fill(store, 900)
    looked: list[str] = []
    offset_of_log = ConsumeQueue.offset_of_log

    def noted(queue: ConsumeQueue, log_offset: int) -> int:
        looked.append(queue.topic)
        return offset_of_log(queue, log_offset)

    monkeypatch.setattr(ConsumeQueue, "offset_of_log", noted)
    for is_first in (True, False):
        store._flush.position = store.max_physical_offset
        store.start()
        age(store, 73, 1)
        looked.clear()
        assert store.delete_expired_files() == 1
        await until(lambda: not store._maintenance.retention._following)  # noqa: B023
        assert len(set(looked)) == (21 if is_first else 1)
        await store.close()
        store = bench.open(clock=clock_at(3), disk=disk)
    assert store.findings == []
    for queues in store.queues().values():
        for queue in queues.values():
            assert queue.min_offset() == offset_of_log(queue, store.min_physical_offset)
