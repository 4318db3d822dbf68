"""With a readable end, no reader ever gets a message beyond it, and every reader gets all messages up to it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.conftest import HOST, StoreBench, fill, put

from cometmq.message.ids import tags_code
from cometmq.message.record import iter_records
from cometmq.store.config import StoreConfig
from cometmq.store.cut import cut_log
from cometmq.store.errors import StoreClosedError
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

QUEUES = [("A", 0), ("A", 1), ("B", 0)]


class Reader:
    """A store that holds messages back, and all its records in log order."""

    def __init__(self, root: Path, readable: int) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.records: list[tuple[int, int, tuple[str, int], int, int]] = []
        """Of each record: its start and end in the log, its queue, its offset there, and its number."""
        self.times: list[int] = []
        self.store = self.open(readable)

    def open(self, readable: int | None) -> MessageStore:
        config = StoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=4096,
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=64,
            max_index_num=400,
        )
        return MessageStore.open(config, clock=self.clock, readable=readable)

    def reopen(self, readable: int) -> None:
        """Stop and start."""
        self.store.close_now()
        self.store = self.open(readable)

    def kill(self, readable: int) -> None:
        """Start again on what a killed process leaves."""
        copy = self.root.with_name(f"{self.root.name}-killed")
        shutil.copytree(self.root, copy)
        self.store.close_now()
        shutil.rmtree(self.root)
        copy.rename(self.root)
        self.store = self.open(readable)

    def cut(self, offset: int) -> None:
        """Cut the log of the stopped store."""
        self.store.close_now()
        cut_log(self.store.config, offset, 1)
        self.records = [record for record in self.records if record[1] <= offset]
        del self.times[len(self.records) :]
        self.store = self.open(offset)

    def put(self, place: tuple[str, int], count: int, size: int) -> None:
        """Commit some messages with one write."""
        self.clock.advance(1)
        for _ in range(count):
            number = len(self.records)
            queue = self.store.queue(*place)
            tag = f"t{number % 2}"
            text = f"KEYS\x01key\x02TAGS\x01{tag}".encode()
            record = NewRecord(b"%d" % number + b"x" * size, text, 0, 0, 1, HOST, HOST, 0, 0, tags_code(tag), ("key",))
            start = self.store.batch.put(queue, record)
            self.records.append((start, self.store.batch.end, place, queue.next_offset - 1, number))
        self.store.batch.commit()
        self.times += [self.store.batch.timestamp] * count

    def check(self, end: int) -> None:
        """Every way to read gives the records up to ``end``, and no others."""
        store = self.store
        for place in QUEUES:
            mine = [record for record in self.records if record[2] == place]
            want = [number for _, at, _, _, number in mine if at <= end]
            times = [self.times[number] for number in want]
            queue = store.queue(*place)
            assert store.extent(*place) == (0, len(want))
            assert queue.max_offset() == len(want)
            assert queue.committed == len(mine) == store.stored_end(*place)
            assert read_all(store, queue) == want
            assert read_all(store, queue, tag=tags_code("t1")) == [number for number in want if number % 2]
            chosen = store.get_message(queue, 0, 999, predicate=lambda view: b"x" in bytes(view))
            assert chosen.max_offset == len(want)
            in_runs = sum(len(run.numbers) for run in store.unit_runs(queue, 0, 999)[0])  # up to the end of a file
            assert min(len(want), 1) <= in_runs <= len(want)
            after = store.get_message(queue, len(want), 1)
            assert after.status in (GetMessageStatus.OFFSET_OVERFLOW_ONE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
            assert store.store_time(*place, len(want)) == -1
            assert store.first_by_time(*place, 1 << 60) == len(want)
            assert store.offset_by_time(*place, 1 << 60) == max(len(want) - 1, 0)
            if times:
                assert store.store_time(*place, len(want) - 1) == times[-1]
                assert store.first_by_time(*place, times[-1]) == times.index(times[-1])
        for topic in ("A", "B"):
            want = [number for _, at, place, _, number in self.records if at <= end and place[0] == topic]
            found = store.query(topic, "key", 64, 0, 1 << 60)
            numbers = [number_of(bytes(view)) for view in found.records]
            assert numbers == sorted(want)[-64:]
            assert found.last_update_physical_offset <= end
        for start, at, _, _, _ in self.records:
            assert (store.readable_record_at(start) is not None) == (at <= end)
            assert store.record_at(start) is not None


def number_of(record: bytes) -> int:
    """The number in a record's body."""
    [found] = iter_records(record)
    return int(found.body.rstrip(b"x"))


def read_all(store: MessageStore, queue: ConsumeQueue, *, tag: int | None = None) -> list[int]:
    """The numbers of all messages that a consumer gets."""
    numbers: list[int] = []
    offset = 0
    while offset < queue.max_offset():
        found = store.get_message(queue, offset, 32, tag_codes=None if tag is None else frozenset({tag}))
        assert found.max_offset == queue.max_offset()
        assert found.next_begin_offset <= queue.max_offset()
        numbers += [int(record.body.rstrip(b"x")) for record in iter_records(b"".join(map(bytes, found.chunks)))]
        offset = found.next_begin_offset
    return numbers


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(QUEUES), st.integers(1, 6), st.integers(1, 900)),
    st.tuples(st.just("confirm"), st.floats(0, 1.1)),
    st.tuples(st.just("confirm inside"), st.floats(0, 1)),
    st.tuples(st.just("reopen"), st.floats(0, 1)),
    st.tuples(st.just("reopen unknown")),
    st.tuples(st.just("kill"), st.floats(0, 1)),
    st.tuples(st.just("cut"), st.floats(0, 1)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=9))
def test_every_reader_stops_at_the_readable_end_and_gets_all_before_it(steps: list[tuple[object, ...]]) -> None:
    root = Path(tempfile.mkdtemp(prefix="cometmq-readable-"))
    reader = Reader(root, 0)
    readable = 0
    try:
        for name, *values in steps:
            ends = [0, *(end for _, end, *_ in reader.records)]
            if name == "put":
                reader.put(*values)  # type: ignore[arg-type]
            elif name in ("confirm", "confirm inside"):
                [share] = values
                offset = ends[min(int(float(share) * len(ends)), len(ends) - 1)]  # type: ignore[arg-type]
                if name == "confirm inside" and readable:  # in the middle of a record
                    offset += 7
                reader.store.confirm(offset)
                readable = max(readable, min(offset, ends[-1]))
            else:
                offset = 0 if name == "reopen unknown" else ends[int(float(values[0]) * (len(ends) - 1))]  # type: ignore[arg-type]
                readable = offset
                if name == "cut":
                    reader.cut(offset)
                elif name == "kill":
                    reader.kill(offset)
                else:
                    reader.reopen(offset)
            assert reader.store.readable_end == readable
            reader.check(readable)
        reader.store.confirm(1 << 60)
        reader.check(1 << 60)
    finally:
        reader.store.close_now()
        shutil.rmtree(root)


def test_an_offset_inside_a_record_opens_nothing_until_one_between_records_is_confirmed(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    reader.put(("A", 0), 4, 50)
    end = reader.records[1][1]
    reader.reopen(end + 9)
    reader.check(0)
    reader.store.confirm(end + 11)
    reader.check(0)
    reader.store.confirm(reader.records[2][1])
    reader.check(reader.records[2][1])
    reader.store.close_now()


def test_waiting_readers_are_told_once_about_the_queues_that_have_more(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    stored: list[list[tuple[str, int]]] = []
    arrived: list[list[tuple[str, int]]] = []
    reader.store.batch.on_stored.append(lambda queues: stored.append([queue.key for queue in queues]))
    reader.store.batch.on_arrival.append(lambda queues: arrived.append([queue.key for queue in queues]))
    reader.put(("A", 0), 2, 10)
    reader.put(("A", 1), 1, 10)
    reader.put(("A", 0), 1, 10)
    assert stored == [[("A", 0)], [("A", 1)], [("A", 0)]]
    assert arrived == []
    reader.store.confirm(reader.records[0][1])
    assert arrived == [[("A", 0)]]
    reader.store.confirm(reader.records[0][1])
    reader.store.confirm(1 << 60)
    assert arrived == [[("A", 0)], [("A", 0), ("A", 1)]]
    reader.store.close_now()


def test_a_topic_that_is_deleted_and_created_again_shows_none_of_its_new_messages_too_early(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    reader.put(("A", 0), 5, 10)
    old_end = reader.records[-1][1]
    reader.store.delete_topic("A")
    reader.records.clear()
    reader.put(("A", 0), 7, 10)
    reader.store.confirm(old_end)
    assert reader.store.extent("A", 0) == (0, 0)
    reader.store.confirm(1 << 60)
    assert reader.store.extent("A", 0) == (0, 7)
    reader.store.close_now()


def test_a_follower_shows_what_its_master_has_confirmed(tmp_path: Path) -> None:
    master = StoreBench(tmp_path / "master").open()
    fill(master, 30)
    view = master.log_part(0, 1 << 20)
    assert view is not None
    data = bytes(view)
    config = StoreBench(tmp_path / "slave").config
    slave = MessageStore.open(config, is_slave=True, readable=0)
    middle = master.queue("TopicTest", 0).unit(5)
    assert middle is not None
    slave.replicated.append(0, data[:1000])
    slave.confirm(1 << 60)
    assert slave.readable_end == slave.max_physical_offset < 1000
    slave.replicated.append(1000, data[1000:])
    slave.confirm(middle[0])
    assert slave.extent("TopicTest", 0) == (0, 5)
    assert slave.stored_end("TopicTest", 0) == 10
    slave.confirm(len(data))
    assert slave.extent("TopicTest", 0) == (0, 10)
    master.close_now()
    slave.close_now()


def test_retention_keeps_what_is_not_readable_yet(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    for _ in range(8):
        reader.put(("A", 0), 5, 300)
    for path in (tmp_path / "commitlog").iterdir():
        os.utime(path, (1, 1))
    store = reader.store

    async def flush() -> None:
        await store.wait_flushed(store.max_physical_offset)

    asyncio.run(flush())
    assert store.delete_expired_files() == 0
    store.confirm(4096 * 2)
    assert store.delete_expired_files() == 2
    assert store.extent("A", 0)[0] <= store.extent("A", 0)[1]
    store.close_now()


async def test_a_state_file_waits_until_the_log_keeps_its_messages(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    store = reader.store
    reader.put(("A", 0), 2, 10)
    first, second = (end for _, end, *_ in reader.records)
    waits = asyncio.ensure_future(store.wait_kept(first))
    late = asyncio.ensure_future(store.wait_kept(second))
    await store.wait_flushed(second)
    assert store.kept_end == 0
    store.confirm(first)
    await waits
    assert store.kept_end == first
    assert not late.done()
    store.give_up()
    with pytest.raises(StoreClosedError):
        await late
    with pytest.raises(StoreClosedError):
        await store.wait_kept(second)
    await store.wait_kept(first)
    await store.close()


async def test_without_a_set_everything_is_readable_at_once(bench: StoreBench) -> None:
    store = bench.open()
    put(store, "A", 0, b"x")
    end = store.batch.commit()
    assert (store.readable_end, store.extent("A", 0)) == (end, (0, 1))
    await store.wait_kept(end)
    store.give_up()
    assert store.kept_end == end


def test_who_has_read_further_at_another_member_waits_and_is_not_sent_back(tmp_path: Path) -> None:
    """A slave hears what is confirmed a little later than the master's consumers do."""
    reader = Reader(tmp_path, 0)
    for size in (10, 10, 10):
        reader.put(("A", 0), 1, size)
    queue = reader.store.queue("A", 0)
    for readable in (0, 1):
        reader.store.confirm(reader.records[0][1] if readable else 0)
        for offset in range(readable + 1, 4):
            found = reader.store.get_message(queue, offset, 32)
            assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, offset)
        beyond = reader.store.get_message(queue, 4, 32)
        assert beyond.status is not GetMessageStatus.OFFSET_OVERFLOW_ONE
    reader.store.confirm(reader.records[2][1])
    assert reader.store.get_message(queue, 2, 32).count == 1
    reader.store.close_now()
