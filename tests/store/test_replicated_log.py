"""A slave's log: any cuts, stops, kills and damage on the way, and it still becomes the master's, byte for byte."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.store.conftest import SEGMENT_BYTES, StoreBench, fill, keys_found, put, served
from tests.store.disks import MoodyDisk

from cometmq.message.record import MESSAGE_MAGIC_V2
from cometmq.message.sysflag import TRANSACTION_PREPARED
from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreError
from cometmq.store.log.commit_log import filler
from cometmq.store.message_store import MessageStore
from cometmq.store.replicated_log import NotTheLogError
from cometmq.store.write_batch import NewRecord

Benches = Callable[[Path], StoreBench]


def bytes_of(store: MessageStore, start: int, most: int = 1 << 30) -> bytes:
    """The bytes of a master's log from ``start`` on, as they stand in its files; at most to the end of one."""
    size = store.config.mapped_file_size_commit_log
    file = Path(store.config.commit_log) / f"{start - start % size:020d}"
    end = min(store.max_physical_offset, start - start % size + size, start + most)
    return file.read_bytes()[start % size : end - (start - start % size)]


def follow(master: MessageStore, slave: MessageStore, *, cut: int = 32_768) -> None:
    """Replicate all that the slave lacks, in transfers of ``cut`` bytes."""
    log = slave.replicated
    while log.end < master.max_physical_offset:
        log.append(log.end, bytes_of(master, log.end, cut))


def derived(store: MessageStore) -> dict[tuple[str, int], tuple[int, bytes]]:
    """First offset and units of every queue with messages."""
    return {
        queue.key: (
            queue.min_offset(),
            b"".join(bytes(queue.units(n, 1)) for n in range(queue.min_offset(), queue.max_offset())),
        )
        for queues in store.queues().values()
        for queue in queues.values()
        if queue.max_offset()
    }


def log_of(bench: StoreBench) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bench.log_files}


@pytest.mark.parametrize("cut", [61, 1_000, 32_768])
def test_a_slaves_log_queues_and_index_are_the_masters(bench: StoreBench, bench_at: Benches, cut: int) -> None:
    """Records cut anywhere, fillers and log files included."""
    master = bench.open()
    fill(master, 700)
    other = bench_at(bench.root.with_name("slave"))
    slave = other.open()
    follow(master, slave, cut=cut)
    assert slave.max_physical_offset == master.max_physical_offset > 2 * SEGMENT_BYTES
    assert slave.last_record == master.last_record
    assert served(slave) == served(master)
    assert derived(slave) == derived(master)
    assert keys_found(slave, "TopicTest", range(700)) == list(range(700))
    for store in (master, slave):
        store.close_now()
    assert log_of(other) == log_of(bench)
    index = [path.read_bytes() for path in sorted((bench.root / "index").iterdir())]
    assert [path.read_bytes() for path in sorted((other.root / "index").iterdir())] == index


def test_the_tail_is_read_by_nobody_and_a_stop_takes_it_back(bench: StoreBench, bench_at: Benches) -> None:
    """A record that is not whole is asked for again after a stop, and the next start finds a clean end."""
    master = bench.open()
    fill(master, 3)
    whole = master.last_record[0]
    other = bench_at(bench.root.with_name("slave"))
    slave = other.open()
    slave.replicated.append(0, bytes_of(master, 0)[: whole + 50])
    assert (slave.replicated.end, slave.max_physical_offset) == (whole + 50, whole)
    assert len(served(slave)) == 2
    slave.close_now()
    slave = other.open()
    assert slave.findings == []
    assert slave.replicated.end == slave.max_physical_offset == whole


def test_an_empty_log_begins_where_a_file_of_the_master_does(bench: StoreBench, bench_at: Benches) -> None:
    """As Apache's slave does: from the last file on, its queues with the offsets that they have at the master."""
    master = bench.open()
    fill(master, 700)
    start = master.max_physical_offset // SEGMENT_BYTES * SEGMENT_BYTES
    other = bench_at(bench.root.with_name("slave"))
    slave = other.open()
    slave.replicated.begin_at(start)
    follow(master, slave)
    assert slave.min_physical_offset == start
    expected = {
        key: [record for record in records if int.from_bytes(record[28:36], "big") >= start]
        for key, records in served(master).items()
    }
    assert served(slave) == expected
    slave.close_now()
    again = other.open()
    assert (again.findings, served(again)) == ([], expected)
    assert {key: first for key, (first, _) in derived(again).items()} == {
        key: int.from_bytes(records[0][20:28], "big") for key, records in expected.items()
    }


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("end", [1, 40, 100, 101], ids=["first", "inside", "full", "behind-full"])
def test_a_queue_whose_messages_are_older_than_the_log_ends_in_a_unit_below_it(
    bench: StoreBench, bench_at: Benches, end: int, crashed: bool
) -> None:
    """With a blank one there, Apache takes 2 GiB of the log for known (``ConsumeQueue.recover``)."""
    master = bench.open()
    fill(master, 700)
    other = bench_at(bench.root.with_name("slave"))
    slave = other.open()
    slave.replicated.begin_at(SEGMENT_BYTES)
    follow(master, slave)
    slave.replicated.begin_queue("Old", 2, end)
    if crashed:
        other = other.crashed_copy(bench.root.with_name("killed"))
    else:
        slave.close_now()
    slave = other.open()
    assert slave.findings == [] or crashed
    queue = slave.queues()["Old"][2]
    assert (queue.min_offset(), queue.max_offset()) == (end, end)
    offset, size, _ = queue.unit(end - 1) or (0, 0, 0)
    assert 0 < offset + size <= slave.min_physical_offset
    assert put(slave, "Old", 2, b"next")
    slave.batch.commit()
    assert [record[20:28] for record in served(slave)["Old", 2]] == [end.to_bytes(8, "big")]
    slave.close_now()


def test_a_log_of_files_of_another_size_is_refused(bench: StoreBench, bench_at: Benches) -> None:
    """The files must be the master's; the error names the key."""
    slave = bench_at(bench.root.with_name("slave")).open(mapped_file_size_commit_log=4 * SEGMENT_BYTES)
    with pytest.raises(NotTheLogError) as refused:
        slave.replicated.append(SEGMENT_BYTES, b"x")
    assert "mappedFileSizeCommitLog" in str(refused.value)
    assert slave.replicated.end == 0


def test_bytes_of_another_place_are_refused(bench: StoreBench, bench_at: Benches) -> None:
    """Neither a hole nor a repetition gets into the log."""
    master = bench.open()
    fill(master, 20)
    slave = bench_at(bench.root.with_name("slave")).open()
    slave.replicated.append(0, bytes_of(master, 0, 1000))
    for offset in (0, 999, 1001):
        with pytest.raises(NotTheLogError, match="but this log ends at 1000"):
            slave.replicated.append(offset, b"abc")
    follow(master, slave)
    assert served(slave) == served(master)


@pytest.mark.parametrize("byte", [0, 4, 8, 12, 20, 28, 90, 100])
def test_a_damaged_record_is_not_taken(bench: StoreBench, bench_at: Benches, byte: int) -> None:
    """Size, magic, CRC, queue, places, body: the record and all behind it stay out until it comes undamaged."""
    master = bench.open()
    put(master, "TopicTest", 0, b"first " * 20)
    at = put(master, "TopicTest", 0, b"second " * 20)
    put(master, "TopicTest", 0, b"third " * 20)
    master.batch.commit()
    damaged = bytearray(bytes_of(master, 0))
    damaged[at + byte] ^= 0x80
    other = bench_at(bench.root.with_name("slave"))
    slave = other.open()
    with pytest.raises(NotTheLogError, match=f"invalid or damaged record at log offset {at}"):
        slave.replicated.append(0, bytes(damaged))
    assert slave.replicated.end == slave.max_physical_offset == at
    assert [len(records) for records in served(slave).values()] == [1]
    slave.close_now()
    slave = other.open()
    assert slave.findings == []
    follow(master, slave)
    assert served(slave) == served(master)


@pytest.mark.parametrize("end", ["/../../out", "/x", "."])
def test_no_name_becomes_a_path(bench: StoreBench, bench_at: Benches, end: str) -> None:
    """A long name, as RocketMQ 5 has, whose end is not looked at by who makes topics."""
    master = bench.open()
    topic = "t" * 127
    put(master, topic, 0, b"1")
    master.batch.commit()
    record = bytearray(bytes_of(master, 0))
    at = record.index(topic.encode())
    record[at - 1 : at + 127] = struct.pack(">h", 127 + len(end)) + topic.encode() + end.encode()
    record[0:8] = struct.pack(">ii", len(record), MESSAGE_MAGIC_V2)
    slave = bench_at(bench.root.with_name("slave")).open()
    with pytest.raises(NotTheLogError, match="invalid or damaged record at log offset 0"):
        slave.replicated.append(0, bytes(record))
    assert slave.queues() == {}


def test_a_record_whose_properties_end_in_a_zero_is_taken(bench: StoreBench, bench_at: Benches) -> None:
    """Apache's masters store such; what follows it may not have come yet."""
    master = bench.open()
    fill(master, 1)
    record = bytearray(bytes_of(master, 0))
    record[-1] = 0
    slave = bench_at(bench.root.with_name("slave")).open()
    slave.replicated.append(0, bytes(record))
    assert slave.max_physical_offset == len(record)


def test_a_topic_that_was_made_again_begins_again(bench: StoreBench, bench_at: Benches) -> None:
    """The master's queue begins at 0 again; so does the slave's, though it kept the old one."""
    master = bench.open()
    fill(master, 30)
    slave = bench_at(bench.root.with_name("slave")).open()
    follow(master, slave)
    master.delete_topic("TopicTest")
    fill(master, 12, start=100)
    follow(master, slave)
    assert served(slave) == served(master)
    assert derived(slave) == derived(master)


def test_prepared_records_have_no_place_in_a_queue(bench: StoreBench, bench_at: Benches) -> None:
    """As at the master."""
    master = bench.open()
    put(master, "TopicTest", 0, b"prepared", flag=TRANSACTION_PREPARED)
    put(master, "TopicTest", 0, b"plain")
    master.batch.commit()
    slave = bench_at(bench.root.with_name("slave")).open()
    follow(master, slave)
    assert derived(slave) == derived(master)


class FollowingMachine(RuleBasedStateMachine):
    """A master and a slave that gets its bytes in any pieces, is stopped, killed, and sent what is not the log."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cometmq-following-"))
        self.generation = 0
        self.count = 0

    def config(self, name: str) -> StoreConfig:
        return StoreConfig(
            store_path_root_dir=str(self.base / name),
            mapped_file_size_commit_log=4096,
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=16,
            max_index_num=40,
        )

    @property
    def slave_config(self) -> StoreConfig:
        return self.config(f"slave{self.generation}")

    @initialize()
    def begin(self) -> None:
        self.master = MessageStore.open(self.config("master"))
        self.open_slave()

    def open_slave(self) -> None:
        self.slave = MessageStore.open(self.slave_config, is_slave=True)

    @rule(queue=st.integers(0, 2), size=st.integers(0, 1500), count=st.integers(1, 4))
    def store(self, queue: int, size: int, count: int) -> None:
        for _ in range(count):
            self.count += 1
            put(self.master, "T", queue, b"x" * size, key=f"key-{self.count}", tag="a")
        self.master.batch.commit()

    @rule(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5))
    def transfer(self, sizes: list[int]) -> None:
        log = self.slave.replicated
        for size in sizes:
            if log.end < self.master.max_physical_offset:
                log.append(log.end, bytes_of(self.master, log.end, size))

    @precondition(lambda self: self.slave.replicated.end < self.master.max_physical_offset)
    @rule(bit=st.integers(0, 799), size=st.integers(100, 3000))
    def transfer_damaged(self, bit: int, size: int) -> None:
        log = self.slave.replicated
        data = bytearray(bytes_of(self.master, log.end, size))
        where = min(bit // 8, len(data) - 1)
        data[where] ^= 1 << bit % 8
        end = log.end
        position = self.slave.max_physical_offset
        try:
            log.append(log.end, bytes(data))
        except NotTheLogError:
            assert position <= log.end == self.slave.max_physical_offset
            return
        if self.slave.max_physical_offset <= end + where:  # the record is not whole yet
            self.kill()
        if self.slave.max_physical_offset > end + where:  # in bytes that nothing covers
            self.slave.close_now()
            shutil.rmtree(self.base / f"slave{self.generation}")
            self.open_slave()

    @rule(ahead=st.integers(-2000, 2000).filter(bool))
    def transfer_of_another_place(self, ahead: int) -> None:
        log = self.slave.replicated
        if log.is_empty:
            return
        end = log.end
        try:
            log.append(end + ahead, b"abc")
        except NotTheLogError:
            assert log.end == end
        else:
            raise AssertionError("bytes of another place were taken")

    @rule()
    def stop(self) -> None:
        self.slave.close_now()
        self.open_slave()
        assert self.slave.findings == []

    @rule()
    def kill(self) -> None:
        before = self.slave.max_physical_offset
        old = self.slave
        shutil.copytree(self.base / f"slave{self.generation}", self.base / f"slave{self.generation + 1}")
        old.close_now()
        self.generation += 1
        self.open_slave()
        after = self.slave.max_physical_offset
        if after != before:  # the head of a filler had come: recovery needs no more to know that the file is over
            assert after == before - before % 4096 + 4096
            assert bytes_of(self.master, before, 8) == filler(after - before)

    @rule()
    def checkpoint(self) -> None:
        """Units that wait in memory are written to the files."""
        self.slave.query("T", "none", 1, 0, 1)

    @invariant()
    def the_slave_is_a_beginning_of_the_master(self) -> None:
        position = self.slave.max_physical_offset
        ours, theirs = served(self.slave), served(self.master)
        for key, records in theirs.items():
            below = [record for record in records if int.from_bytes(record[28:36], "big") < position]
            assert ours.get(key, []) == below

    def teardown(self) -> None:
        try:
            follow(self.master, self.slave, cut=700)
            assert derived(self.slave) == derived(self.master)
            found = keys_found(self.slave, "T", range(1, self.count + 1))
            assert found == list(range(1, self.count + 1))
        finally:
            for store in (self.master, self.slave):
                store.close_now()
            ours, theirs = (
                {path.name: path.read_bytes() for path in Path(store.config.commit_log).iterdir()}
                for store in (self.slave, self.master)
            )
            shutil.rmtree(self.base)
        assert ours == theirs


TestFollowingMachine = FollowingMachine.TestCase
TestFollowingMachine.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("was_saved", [True, False])
def test_a_record_whose_length_was_damaged_on_its_way_is_asked_for_again_after_a_kill(
    bench: StoreBench, tmp_path: Path, was_saved: bool
) -> None:
    """The slave waits for the rest of it, and sound records stand where it waits."""
    master = bench.open()
    fill(master, 40)
    config = dataclasses.replace(bench.config, store_path_root_dir=str(tmp_path / "slave"))
    slave = MessageStore.open(config, is_slave=True)
    follow(master, slave)
    end = slave.max_physical_offset
    if was_saved:
        slave.close_now()
        slave = MessageStore.open(config, is_slave=True)
    fill(master, 40, start=40)
    data = bytearray(bytes_of(master, end))
    data[0:4] = struct.pack(">i", len(data) + 1)
    slave.replicated.append(end, bytes(data))
    assert slave.max_physical_offset == end
    killed = dataclasses.replace(bench.config, store_path_root_dir=str(tmp_path / "killed"))
    shutil.copytree(tmp_path / "slave", tmp_path / "killed")
    slave.close_now()
    slave = MessageStore.open(killed, is_slave=True)
    try:
        assert slave.max_physical_offset == slave.replicated.end == end
        assert any("copied to" in finding for finding in slave.findings)
        follow(master, slave)
        assert served(slave) == served(master)
    finally:
        slave.close_now()


def test_a_full_disk_stops_following_and_it_goes_on_when_there_is_room(bench: StoreBench, bench_at: Benches) -> None:
    """Nothing is lost and nothing stays half-written."""
    master = bench.open()
    fill(master, 40)
    disk = MoodyDisk()
    slave = bench_at(bench.root.with_name("slave")).open(disk=disk)
    slave.replicated.append(0, bytes_of(master, 0, 1000))
    disk.fails_with, disk.after_bytes = errno.ENOSPC, 300
    before = slave.max_physical_offset
    with pytest.raises(StoreError, match="no space"):
        slave.replicated.append(1000, bytes_of(master, 1000, 3000))
    assert slave.replicated.end == slave.max_physical_offset == before
    follow(master, slave)
    assert served(slave) == served(master)


def test_a_slave_goes_on_once_its_master_has_mended_its_log(bench: StoreBench, bench_at: Benches) -> None:
    """It refuses the damaged record; after a start that reads the whole log, it has every other message."""
    master = bench.open()
    fill(master, 400)
    records = served(master)
    damaged = records["TopicTest", 1][20]
    at = int.from_bytes(damaged[28:36], "big")
    master.close_now()
    content = bytearray(bench.log_files[0].read_bytes())
    content[at + 95] ^= 1
    bench.log_files[0].write_bytes(content)
    master = bench.open()
    slave = bench_at(bench.root.with_name("slave")).open()
    with pytest.raises(NotTheLogError, match="damaged"):
        follow(master, slave)
    master.close_now()
    shutil.rmtree(bench.root / "index")
    master = bench.open()
    follow(master, slave)
    for key, expected in records.items():
        queue = slave.queue(*key)
        assert (queue.min_offset(), queue.max_offset()) == (0, len(expected))
        for offset, record in enumerate(expected):
            got = b"".join(slave.get_message(queue, offset, 1).chunks)
            assert got == (b"" if record == damaged else record)


def test_a_record_whose_keys_are_not_utf8_is_replicated_and_indexed(bench: StoreBench, bench_at: Benches) -> None:
    """It is served as it is, by the master's next start, too; the index has it under what Java reads there."""
    master = bench.open()
    fill(master, 3)
    bad = b"KEYS\x01k\xff\x02TAGS\x01\xfe"
    host = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
    record = NewRecord(b"body", bad, 0, 0, 1, host, host, keys=["k\ufffd"])
    master.batch.put(master.queue("TopicTest", 0), record)
    master.batch.commit()
    fill(master, 6, start=3)
    expected = served(master)
    slave = bench_at(bench.root.with_name("slave")).open()
    follow(master, slave)
    assert served(slave) == expected
    assert len(slave.query("TopicTest", "k\ufffd", 32, 0, 1 << 62).records) == 1
    master.close_now()
    shutil.rmtree(bench.root / "index")
    shutil.rmtree(bench.root / "consumequeue")
    shutil.rmtree(bench.root / "comet")
    again = bench.open()
    assert served(again) == expected
    assert len(again.query("TopicTest", "k\ufffd", 32, 0, 1 << 62).records) == 1
