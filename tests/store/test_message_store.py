"""Turns, reads, filters, time, transactions, topics: what a healthy store does."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.waiting import until
from tests.store.conftest import HOST, SEGMENT_BYTES, StoreBench, fill, keys_found, put, served

from cometmq.core import CORE
from cometmq.message.ids import tags_code
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import BLANK_MAGIC, decode_record, encode_record
from cometmq.store.errors import StoreClosedError, StoreError, StoreLockedError
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, MessageStore
from cometmq.store.queue import get_message
from cometmq.store.queue.directory_remover import DirectoryRemover
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

V6 = bytes(15) + b"\x01" + (20911).to_bytes(4, "big")


@pytest.mark.parametrize("born_host", [HOST, V6])
@pytest.mark.parametrize("store_host", [HOST, V6])
def test_a_record_is_what_the_codec_makes(bench: StoreBench, born_host: bytes, store_host: bytes) -> None:
    clock = VirtualClock()
    store = bench.open(clock=clock)
    queue = store.queue("TopicTest", 3)
    sys_flag = (0x10 if born_host is V6 else 0) | (0x20 if store_host is V6 else 0)
    offset = store.batch.put(
        queue, NewRecord(b"body", b"TAGS\x01TagA", 7, sys_flag, 123, born_host, store_host, 2, 99, 1, [])
    )
    store.batch.commit()
    assert store.record_at(offset) == encode_record(
        topic="TopicTest",
        queue_id=3,
        queue_offset=0,
        physical_offset=0,
        body=b"body",
        properties_text="TAGS\x01TagA",
        flag=7,
        born_timestamp=123,
        born_host=born_host,
        store_timestamp=clock.now_ms(),
        store_host=store_host,
        reconsume_times=2,
        prepared_transaction_offset=99,
    )


def test_a_batch_is_seen_only_once_committed(bench: StoreBench) -> None:
    store = bench.open()
    arrived: list[list[ConsumeQueue]] = []
    store.batch.on_arrival.append(lambda queues: arrived.append(list(queues)))
    first, second = store.queue("TopicTest", 0), store.queue("TopicTest", 1)
    put(store, "TopicTest", 0, b"one")
    put(store, "TopicTest", 1, b"two")
    put(store, "TopicTest", 0, b"three")
    assert (first.next_offset, first.max_offset(), arrived) == (2, 0, [])
    assert store.get_message(first, 0, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert store.batch.commit() == store.max_physical_offset > 0
    assert arrived == [[first, second]]
    assert [len(records) for records in served(store).values()] == [2, 1]
    assert store.batch.commit() == store.max_physical_offset
    assert len(arrived) == 1


def test_log_files_roll_over_with_a_filler(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 600, turn=50)
    assert len(served(store)) == 3
    assert sum(map(len, served(store).values())) == 600
    assert len(store._log.segments) >= 3
    for segment in store._log.segments[:-1]:
        at = 0
        while int.from_bytes(segment.view[at + 4 : at + 8], "big", signed=True) != BLANK_MAGIC:
            at += int.from_bytes(segment.view[at : at + 4], "big")
        assert int.from_bytes(segment.view[at : at + 4], "big") == SEGMENT_BYTES - at
    assert keys_found(store, "TopicTest", range(600)) == list(range(600))


@pytest.mark.parametrize("spare", range(7, 11))
def test_a_record_that_just_fits(bench: StoreBench, spare: int) -> None:
    """Eight bytes must stay free behind the last record of a file, for the filler."""
    store = bench.open()
    put(store, "TopicTest", 0, b"")
    store.batch.commit()
    overhead = store.max_physical_offset
    put(store, "TopicTest", 0, b"x" * (SEGMENT_BYTES - 2 * overhead - spare))
    store.batch.commit()
    assert len(store._log.segments) == (2 if spare < 8 else 1)
    put(store, "TopicTest", 0, b"next")
    store.batch.commit()
    expected = served(store)
    store.close_now()
    assert served(bench.open()) == expected


def test_records_too_large_are_refused_without_harm(bench: StoreBench) -> None:
    store = bench.open()
    with pytest.raises(ValueError, match="log file"):
        put(store, "TopicTest", 0, b"x" * SEGMENT_BYTES)
    with pytest.raises(ValueError, match="properties"):
        store.batch.put(store.queue("TopicTest", 0), NewRecord(b"", b"p" * 32_768, 0, 0, 0, HOST, HOST, 0, 0, 0, []))
    put(store, "TopicTest", 0, b"fine")
    store.batch.commit()
    assert [len(records) for records in served(store).values()] == [1]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 128, "a b", "\0"])
def test_names_that_are_no_topics_never_become_paths(bench: StoreBench, name: str) -> None:
    store = bench.open()
    with pytest.raises(ValueError, match="topic"):
        store.queue(name, 0)
    with pytest.raises(ValueError, match="queue id"):
        store.queue("TopicTest", -1)


def test_statuses_and_next_offsets(bench: StoreBench) -> None:
    store = bench.open()
    queue = store.queue("TopicTest", 0)
    assert store.get_message(queue, 5, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    fill(store, 10, queues=1)
    found = {offset: store.get_message(queue, offset, 4) for offset in (-1, 0, 8, 10, 11)}
    assert {
        offset: (result.status.name, result.next_begin_offset, result.count) for offset, result in found.items()
    } == {
        -1: ("OFFSET_TOO_SMALL", 0, 0),
        0: ("FOUND", 4, 4),
        8: ("FOUND", 10, 2),
        10: ("OFFSET_OVERFLOW_ONE", 10, 0),
        11: ("OFFSET_OVERFLOW_BADLY", 10, 0),
    }
    assert {(result.min_offset, result.max_offset) for result in found.values()} == {(0, 10)}
    assert len(found[0].chunks) == 1, "neighbouring records are one slice"
    assert store.get_message(queue, 0, 32, max_bytes=1).count == 1, "one message is given whatever its size"
    assert store.get_message(queue, 0, 0).count == 1


@pytest.mark.skipif(CORE is None, reason="the compiled core is not installed")
@pytest.mark.parametrize(
    ("body_bytes", "count", "is_copied"),
    [(128, 400, True), (1_024, 850, True), (1_024, 1_000, False), (6_000, 20, False)],
)
def test_many_small_records_between_others_are_one_copy(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, body_bytes: int, count: int, is_copied: bool
) -> None:
    """The answer has the same bytes as slices of the log. A larger one than a pull's by default stays slices."""
    store = bench.open(mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20_000)
    for _ in range(count):
        for queue_id in (0, 1):
            put(store, "TopicTest", queue_id, b"x" * body_bytes)
    store.batch.commit()
    copied = store.get_message(store.queue("TopicTest", 1), 0, count, max_bytes=2 << 20)
    assert (len(copied.chunks), copied.count) == (1 if is_copied else count, count)
    assert copied.size > 64 * 1024
    monkeypatch.setattr(get_message, "CORE", None)
    sliced = store.get_message(store.queue("TopicTest", 1), 0, count, max_bytes=2 << 20)
    assert len(sliced.chunks) == count
    assert b"".join(sliced.chunks) == b"".join(copied.chunks)
    assert sliced.next_begin_offset == copied.next_begin_offset == count


@pytest.mark.parametrize("messages", [12, 400])
def test_tags_are_filtered_by_their_code(bench: StoreBench, messages: int) -> None:
    store = bench.open()
    fill(store, messages, queues=1)
    queue = store.queue("TopicTest", 0)
    for wanted in ({"tag-1"}, {"tag-0", "tag-2"}, {"none"}):
        codes = frozenset(map(tags_code, wanted))
        got: list[int] = []
        offset = 0
        while offset < messages:
            result = store.get_message(queue, offset, 7, tag_codes=codes)
            assert result.next_begin_offset > offset
            assert (result.status is GetMessageStatus.FOUND) == (result.count > 0)
            offset = result.next_begin_offset
            for chunk in result.chunks:
                at = 0
                while at < len(chunk):
                    record = decode_record(chunk, at)
                    assert record.properties["TAGS"] in wanted
                    got.append(record.queue_offset)
                    at += record.size
        assert got == [number for number in range(messages) if f"tag-{number % 3}" in wanted]


def test_predicates_see_each_record(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 40, queues=1)
    queue = store.queue("TopicTest", 0)
    result = store.get_message(queue, 0, 32, predicate=lambda view: b"key-1" in bytes(view))
    assert (result.count, result.next_begin_offset) == (11, 40)


class JumpyClock(VirtualClock):
    offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


def test_store_timestamps_never_go_back(bench: StoreBench) -> None:
    clock = JumpyClock()
    store = bench.open(clock=clock)
    for jump in (0, 5_000, -60_000, 6_000):
        clock.offset_ms = jump
        put(store, "TopicTest", 0, b"x")
        store.batch.commit()
    times = [decode_record(raw).store_timestamp for raw in served(store)["TopicTest", 0]]
    assert times == sorted(times)
    store.close_now()
    clock.offset_ms = -1_000_000
    again = bench.open(clock=clock)
    put(again, "TopicTest", 0, b"x")
    again.batch.commit()
    assert decode_record(served(again)["TopicTest", 0][-1]).store_timestamp >= times[-1]


async def test_a_clock_that_was_ahead_once_is_told_of_until_it_is_right(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    year = 365 * 86_400
    ahead = VirtualClock(1_700_000_000_000 + 3 * year * 1_000)
    store = bench.open(clock=ahead)
    put(store, "TopicTest", 0, b"x")
    store.batch.commit()
    store.start()
    ahead.advance(20)
    assert (store.clock_behind_ms, "behind" in caplog.text) == (0, False)
    store.close_now()
    clock = JumpyClock(1_700_000_000_000)
    again = bench.open(clock=clock)
    again.start()
    clock.advance(20)
    assert again.clock_behind_ms == (3 * year - 20) * 1_000
    assert caplog.text.count("the clock is 1095 days behind") == 1
    put(again, "TopicTest", 0, b"x")
    again.batch.commit()
    assert again.store_time("TopicTest", 0, 1) == 1_700_000_000_000 + 3 * year * 1_000
    clock.offset_ms = 3 * year * 1_000
    clock.advance(20)
    assert (again.clock_behind_ms, caplog.text.count("days behind")) == (0, 1)
    again.close_now()


async def test_a_clock_that_goes_back_in_a_running_store_is_told_of_from_a_minute_on(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    clock = JumpyClock()
    store = bench.open(clock=clock)
    store.start()
    for back_ms, told in ((0, 0), (35_000, 0), (200_000, 1), (0, 1), (500_000, 2)):
        clock.offset_ms = 0
        put(store, "TopicTest", 0, b"x")
        store.batch.commit()
        clock.advance(10)
        clock.offset_ms = -back_ms
        clock.advance(20)  # two looks
        assert caplog.text.count("behind the newest message of the store: it is wrong") == told, back_ms
    store.close_now()


def test_entries_without_a_message_are_counted_and_told_of_once(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    store = bench.open()
    fill(store, 300, queues=1)
    gone, mended = 20, 22
    place, size, _ = store.queue("TopicTest", 0).unit(gone) or (0, 0, 0)
    store.close_now()
    units = bench.root / "consumequeue" / "TopicTest" / "0" / f"{0:020}"
    with open(units, "r+b") as file:
        file.seek(gone * 20)
        file.write(bytes(20 * (mended + 1 - gone)))
    with open(bench.log_files[0], "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * size)
    again = bench.open()
    queue = again.queue("TopicTest", 0)
    for _ in range(2):
        assert again.get_message(queue, gone, 1).count == 0
        assert again.get_message(queue, mended, 1).count == 1
    assert again.missing_entries() == 1
    [line] = [record.message for record in caplog.records if "point to no message" in record.message]
    assert line.startswith("consumequeue/TopicTest/0: units from offset 20 on")
    assert "cometmq pipeline rebuild" in line


def test_offsets_by_time(bench: StoreBench) -> None:
    clock = VirtualClock(1_000_000)
    store = bench.open(clock=clock)
    for _ in range(150):
        put(store, "TopicTest", 0, b"x")
        store.batch.commit()
        clock.advance(0.010)
    assert store.store_time("TopicTest", 0, 7) == 1_000_070
    assert store.store_time("TopicTest", 0, 999) == -1
    assert store.earliest_store_time() == 1_000_000
    by_time = {
        ms: store.offset_by_time("TopicTest", 0, 1_000_000 + ms) for ms in (-5, 0, 70, 74, 75, 76, 1_400, 99_999)
    }
    assert by_time == {-5: 0, 0: 0, 70: 7, 74: 7, 75: 7, 76: 8, 1_400: 140, 99_999: 149}
    assert store.offset_by_time("Unknown", 0, 5) == 0


def test_prepared_and_rolled_back_records_are_in_no_queue(bench: StoreBench) -> None:
    store = bench.open()
    queue = store.queue("TopicTest", 0)
    offsets = [put(store, "TopicTest", 0, b"tx", key="key-1", flag=flag) for flag in (0x4, 0x8, 0xC, 0)]
    store.batch.commit()
    assert queue.max_offset() == 2
    assert [decode_record(store.record_at(offset) or b"").queue_offset for offset in offsets] == [0, 0, 0, 1]
    assert len(store.query("TopicTest", "key-1", 32, 0, 1 << 62).records) == 3, "rolled back ones are not indexed"
    copy = served(store)
    store.close_now()
    assert served(bench.open()) == copy


def test_the_schedule_topic_keeps_the_due_time_as_tags_code(bench: StoreBench, tmp_path: Path) -> None:
    clock = VirtualClock()
    store = bench.open(clock=clock)
    put(store, SCHEDULE_TOPIC, 2, b"ten seconds", tag="ignored")
    store.batch.commit()
    unit = store.queue(SCHEDULE_TOPIC, 2).unit(0)
    assert unit is not None
    assert unit[2] == clock.now_ms() + 10_000
    copy = bench.crashed_copy(tmp_path / "copy")
    assert copy.open().queue(SCHEDULE_TOPIC, 2).unit(0) == unit
    copy.close_all()


def test_a_deleted_topic_begins_again_at_zero(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 60)
    fill(store, 60, topic="Other")
    store._maintenance.write_derived()
    assert store.delete_topic("TopicTest")
    assert not (bench.root / "consumequeue" / "TopicTest").exists()
    assert list(served(store)) == [("Other", 0), ("Other", 1), ("Other", 2)]
    fill(store, 9)
    expected = served(store)
    assert [len(expected["TopicTest", queue_id]) for queue_id in range(3)] == [3, 3, 3]
    store.close_now()
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected


async def test_a_deleted_queue_is_freed_unless_somebody_holds_it(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 60)
    held, freed = store.queue("TopicTest", 0), weakref.ref(store.queue("TopicTest", 1))
    assert store.delete_topic("TopicTest")
    assert "TopicTest" not in store.queues()
    store.start()
    store._maintenance.checkpoints.begin()
    await until(lambda: gc.collect() >= 0 and freed() is None)
    fill(store, 9)
    assert store.queue("TopicTest", 0) is held, "two objects of one queue would give an offset twice"
    assert held.max_offset() == 3


@pytest.mark.parametrize("is_durable_before", [True, False])
def test_messages_in_a_queue_that_was_held_during_its_deletion_are_found(
    bench: StoreBench, is_durable_before: bool
) -> None:
    store = bench.open()
    fill(store, 9, queues=1)
    store._maintenance.write_derived()
    held = store.queue("TopicTest", 0)
    pending: list[Callable[[], None]] = []
    assert store.delete_topic("TopicTest", when_durable=pending.append)
    if is_durable_before:
        pending.pop()()
    store.batch.put(held, NewRecord(b"anew", b"", 0, 0, 1_700_000_000_000, HOST, HOST))
    assert store.find_queue("TopicTest", 0) is None, "the message is not stored yet"
    store.batch.commit()
    assert store.find_queue("TopicTest", 0) is held
    store._maintenance.write_derived()
    for is_durable in pending:
        is_durable()
    expected = served(store)
    assert list(expected) == [("TopicTest", 0)]
    assert len(expected["TopicTest", 0]) == 1
    store.close_now()
    assert served(bench.open()) == expected


def test_files_of_deleted_topics_are_removed_beside_other_work_and_after_a_kill_by_the_next_start(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = bench.root / "comet" / "removed"
    store = bench.open()
    fill(store, 60)
    store._maintenance.write_derived()
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryRemover, "_submit", lambda _remover, _moved: None)  # killed before the removal
        assert store.delete_topic("TopicTest")
    assert not (bench.root / "consumequeue" / "TopicTest").exists()
    assert [sorted(path.name for path in topic.iterdir()) for topic in removed.iterdir()] == [["0", "1", "2"]]
    store._queues.remover.resume()
    store.close_now()
    assert not list(removed.iterdir())


def test_one_store_is_opened_once(bench: StoreBench) -> None:
    bench.open()
    with pytest.raises(StoreLockedError, match="another process"):
        bench.open()
    code = (
        "import sys\n"
        "from cometmq.store.config import StoreConfig\n"
        "from cometmq.store.errors import StoreLockedError\n"
        "from cometmq.store.message_store import MessageStore\n"
        "try:\n    MessageStore.open(StoreConfig(store_path_root_dir=sys.argv[1]))\n"
        "except StoreLockedError:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(bench.root)], check=False).returncode == 7


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="storePathRootDir"):
        StoreBench(tmp_path / "file" / "store").open()


def test_a_closed_store_takes_nothing(bench: StoreBench) -> None:
    store = bench.open()
    put(store, "TopicTest", 0, b"not committed")
    store.close_now()
    assert isinstance(store.writable(), StoreClosedError)
    assert served(bench.open()) == {}


def test_slices_stay_readable_after_their_file_is_deleted(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 400)
    chunk = store.get_message(store.queue("TopicTest", 0), 0, 5).chunks[0]
    before = bytes(chunk)
    store._log.remove_first()
    assert bytes(chunk) == before


def test_reopening_in_turn_keeps_everything(bench: StoreBench) -> None:
    expected: dict[tuple[str, int], list[bytes]] = {}
    for turn in range(6):
        store: MessageStore = bench.open()
        assert served(store) == expected
        assert store.findings == []
        fill(store, 130, start=turn * 1000)
        expected = served(store)
        store.close_now()
        assert not (bench.root / "abort").exists()
        assert (bench.root / "lock").read_bytes() == b"lock"
        assert (bench.root / "checkpoint").stat().st_size == 4096


def test_properties_that_end_in_a_zero_survive_a_kill(bench: StoreBench, tmp_path: Path) -> None:
    """Recovery takes zeros at the end of the log for torn properties, so none are stored that end so."""
    store = bench.open()
    store.batch.put(store.queue("TopicTest", 0), NewRecord(b"x", b"name\x01value\0", 0, 0, 0, HOST, HOST, 0, 0, 0, []))
    store.batch.commit()
    put(store, "TopicTest", 1, b"no properties")
    store.batch.commit()
    expected = served(store)
    assert decode_record(expected["TopicTest", 0][0]).properties == {"name": "value\0"}
    copy = bench.crashed_copy(tmp_path / "copy")
    assert served(copy.open()) == expected
    copy.close_all()
    store.close_now()
    assert served(bench.open()) == expected
