"""Damages of a store, and what opening it makes of them (the table in docs/store.md)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.conftest import HOST, SEGMENT_BYTES, Served, StoreBench, fill, keys_found, put, served

from cometmq.message.record import encode_record
from cometmq.store.log.mapped_file import file_name

MESSAGES = 600
Damage = Callable[[Path], None]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_end(root: Path) -> tuple[Path, int]:
    """The last log file that holds records, and the byte in it where they end."""
    for path in sorted((root / "commitlog").iterdir(), reverse=True):
        content = path.read_bytes()
        at = 0
        while at + 8 <= len(content) and content[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
            at += int.from_bytes(content[at : at + 4], "big")
        if at:
            return path, at
    raise AssertionError("an empty log")


def at_log_end(data: bytes) -> Damage:
    def damage(root: Path) -> None:
        path, at = log_end(root)
        overwrite(path, at, data)

    return damage


def last_queue_file(root: Path, topic: str = "TopicTest", queue_id: int = 0) -> Path:
    return max((root / "consumequeue" / topic / str(queue_id)).iterdir())


def zero_queue_tail(root: Path) -> None:
    path = last_queue_file(root)
    used = len(path.read_bytes().rstrip(b"\0"))
    overwrite(path, max(0, used - 90), bytes(200))


def garbage_behind_queue(root: Path) -> None:
    path = last_queue_file(root)
    used = len(path.read_bytes().rstrip(b"\0"))
    overwrite(path, -(-used // 20) * 20, random.Random(1).randbytes(60))


def stale_units(root: Path) -> None:
    """Units that lead into the middle of records, as Apache leaves them when it cuts a queue back."""
    path = last_queue_file(root)
    used = -(-len(path.read_bytes().rstrip(b"\0")) // 20) * 20
    unit = path.read_bytes()[used - 20 : used]
    offset = int.from_bytes(unit[:8], "big")
    for number in range(3):
        overwrite(path, used + 20 * number, (offset + 13 * (number + 1)).to_bytes(8, "big") + unit[8:])


def resize(path: Path, size: int) -> None:
    os.truncate(path, size)


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def next_log_file(content: bytes) -> Damage:
    def damage(root: Path) -> None:
        files = list((root / "commitlog").iterdir())
        (root / "commitlog" / file_name(len(files) * SEGMENT_BYTES)).write_bytes(content)

    return damage


def only_apaches(*damages: Damage) -> Damage:
    """Nothing of ours is left, as if Apache had written the store."""

    def damage(root: Path) -> None:
        shutil.rmtree(root / "comet", ignore_errors=True)
        for each in damages:
            each(root)

    return damage


def garbage_position(root: Path) -> None:
    (root / "comet").mkdir(exist_ok=True)
    (root / "comet" / "position.json").write_bytes(b"{x")


def far_log_file(root: Path) -> None:
    (root / "commitlog" / file_name(99 * SEGMENT_BYTES)).write_bytes(b"x" * SEGMENT_BYTES)


def no_queue_1(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "TopicTest" / "1")


def no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def no_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def no_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink()


DAMAGES: dict[str, Damage] = {
    "nothing": lambda root: None,
    "garbage behind the log": at_log_end(random.Random(0).randbytes(300)),
    "half a record behind the log": at_log_end(
        (300).to_bytes(4, "big") + b"\xda\xa3\x20\xa7" + random.Random(2).randbytes(40)
    ),
    "bad magic behind the log": at_log_end((120).to_bytes(4, "big") + b"\1\2\3\4" + bytes(112)),
    "negative size behind the log": at_log_end((-5).to_bytes(4, "big", signed=True) + b"\xda\xa3\x20\xa7"),
    "tiny size behind the log": at_log_end((7).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"),
    "huge size behind the log": at_log_end((0x7FFFFFFF).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"),
    "huge filler behind the log": at_log_end((0x7FFFFFFF).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"),
    "zeroed next log file": next_log_file(bytes(SEGMENT_BYTES)),
    "garbage next log file": next_log_file(random.Random(3).randbytes(SEGMENT_BYTES)),
    "empty next log file": next_log_file(b""),
    "long log file": lambda root: resize(max((root / "commitlog").iterdir()), SEGMENT_BYTES + 1000),
    "foreign name in the log": lambda root: write((root / "commitlog" / "notes.txt"), b"mine"),
    "foreign directory in the log": lambda root: (root / "commitlog" / "lost+found").mkdir(),
    "foreign number in the log": lambda root: write((root / "commitlog" / "123"), b"mine"),
    "far number in the log": far_log_file,
    "one queue gone": no_queue_1,
    "one topic's queues gone": lambda root: shutil.rmtree(root / "consumequeue" / "TopicTest"),
    "all queues gone": no_queues,
    "last file of a queue gone": lambda root: last_queue_file(root).unlink(),
    "first file of a queue gone": lambda root: min((root / "consumequeue" / "TopicTest" / "0").iterdir()).unlink(),
    "queue tail zeroed": zero_queue_tail,
    "queue tail garbage": garbage_behind_queue,
    "stale queue units": stale_units,
    "queue file empty": lambda root: resize(last_queue_file(root), 0),
    "queue file short": lambda root: resize(last_queue_file(root), 37),
    "queue file long": lambda root: resize(last_queue_file(root), 4_321),
    "foreign file in a queue": lambda root: write((root / "consumequeue" / "TopicTest" / "0" / "x"), b"x"),
    "foreign name of a queue": lambda root: (root / "consumequeue" / "TopicTest" / "abc").mkdir(),
    "foreign name of a topic": lambda root: (root / "consumequeue" / "a b").mkdir(),
    "index gone": no_index,
    "first index file gone": lambda root: index_files(root)[0].unlink(),
    "last index file gone": lambda root: index_files(root)[-1].unlink(),
    "index file empty": lambda root: resize(index_files(root)[-1], 0),
    "index file short": lambda root: resize(index_files(root)[0], 1000),
    "index file garbage": lambda root: write(index_files(root)[-1], random.Random(4).randbytes(40 + 400 + 8000)),
    "foreign file in the index": lambda root: write((root / "index" / "x"), b"x"),
    "checkpoint gone": no_checkpoint,
    "checkpoint empty": lambda root: resize(root / "checkpoint", 0),
    "checkpoint garbage": lambda root: write(root / "checkpoint", random.Random(5).randbytes(4096)),
    "lock gone": lambda root: (root / "lock").unlink(),
    "position gone": lambda root: (root / "comet" / "position.json").unlink(missing_ok=True),
    "position garbage": garbage_position,
    "only Apache's files": only_apaches(),
    "only Apache's files, one queue gone": only_apaches(no_queue_1),
    "only Apache's files, queue tail zeroed": only_apaches(zero_queue_tail),
    "only Apache's files, stale queue units": only_apaches(stale_units),
    "only Apache's files, index gone": only_apaches(no_index),
    "only Apache's files, queue and checkpoint gone": only_apaches(no_queues, no_checkpoint),
}

SILENT = {
    "nothing",
    "zeroed next log file",  # made ahead by a process that was killed: not a damage
    "lock gone",
    "position gone",
    "position garbage",
    "only Apache's files",
}

BEHIND_POSITION = {
    "last file of a queue gone",
    "queue tail zeroed",
    "queue file empty",
    "queue file short",
    "only Apache's files, one queue gone",
    "only Apache's files, queue tail zeroed",
}
"""After a kill these look like what was not yet written, and are read from the log without a word."""


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_costs_no_message_and_is_told(name: str, stop: str, bench: StoreBench, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, MESSAGES)
    expected = served(store)
    end = store.max_physical_offset
    if stop == "clean":
        store.close_now()
    else:
        store._maintenance.write_derived()
        store._maintenance.checkpoints.save_now()
        fill(store, 50, start=MESSAGES)
        expected = served(store)
        end = store.max_physical_offset
        store._maintenance.write_derived()
    damaged = bench.crashed_copy(tmp_path / "damaged")
    DAMAGES[name](damaged.root)

    again = damaged.open()
    reported = [line for line in again.findings if not line.startswith("abort: ")]
    if name not in SILENT and not (stop == "killed" and name in BEHIND_POSITION):
        assert reported, "a damage that nobody is told of"
    assert served(again) == expected
    assert again.max_physical_offset == end
    assert again.min_physical_offset == 0
    assert len(keys_found(again, "TopicTest", range(MESSAGES))) == MESSAGES

    # It goes on from here, and the next start finds nothing left to mend.
    fill(again, 100, start=10_000)
    more = served(again)
    again.close_now()
    third = damaged.open()
    assert third.findings == []
    assert served(third) == more
    damaged.close_all()


def test_what_is_set_aside_is_kept(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 20)
    store.close_now()
    (bench.root / "commitlog" / "notes.txt").write_text("mine")
    with bench.log_files[0].open("ab") as file:
        file.write(b"behind the end")
    again = bench.open()
    quarantine = bench.root / "comet" / "quarantine"
    assert {path.read_bytes() for path in quarantine.iterdir()} == {b"mine", b"behind the end"}
    assert len(again.findings) == 2
    assert len(served(again)) == 3


def test_torn_tail_at_every_byte_of_the_last_records(bench: StoreBench, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, 40)
    start = store.max_physical_offset
    ends = []
    for number in range(3):
        put(store, "TopicTest", number % 2, b"tail %d " % number * 8, key=f"tail-{number}", tag="t")
        ends.append(store.batch.commit())
    everything = served(store)
    store._maintenance.write_derived()
    end = store.max_physical_offset
    for cut in range(start, end + 1):
        copy = bench.crashed_copy(tmp_path / f"cut{cut}")
        overwrite(copy.log_files[0], cut, bytes(end - cut))
        again = copy.open()
        whole = sum(cut >= at for at in ends)
        # Zeros at the end of a record may equal what they replaced; it is whole then.
        assert again.max_physical_offset in (start, *ends)
        assert again.max_physical_offset >= ([start, *ends])[whole]
        assert_is_prefix(served(again), everything, 40 + [start, *ends].index(again.max_physical_offset))
        put(again, "TopicTest", 0, b"after")
        again.batch.commit()
        assert sum(map(len, served(again).values())) == 41 + [start, *ends].index(again.last_record[0])
        copy.close_all()
        shutil.rmtree(copy.root)


def assert_is_prefix(found: Served, everything: Served, messages: int) -> None:
    for key, records in found.items():
        assert records == everything[key][: len(records)]
    assert sum(map(len, found.values())) == messages


@pytest.mark.parametrize("keep_position", [True, False])
def test_records_that_were_cut_never_come_back(bench: StoreBench, tmp_path: Path, keep_position: bool) -> None:
    """After a cut, a new record of the same length must not bring what stood behind it to life."""
    store = bench.open()
    fill(store, 10)
    base = store.max_physical_offset
    for _ in range(4):
        put(store, "TopicTest", 0, b"o" * 50)
        store.batch.commit()
    copy = bench.crashed_copy(tmp_path / "copy")
    for number in range(4):
        overwrite(copy.log_files[0], base + 150 * number + 90, b"#")
    if not keep_position:
        shutil.rmtree(copy.root / "comet", ignore_errors=True)
    again = copy.open()
    assert again.max_physical_offset == base
    put(again, "TopicTest", 0, b"n" * 50)
    again.batch.commit()
    expected = served(again)
    again._maintenance.write_derived()
    once_more = copy.crashed_copy(tmp_path / "again")
    third = once_more.open()
    assert served(third) == expected
    once_more.close_all()
    copy.close_all()


def test_a_wrong_file_size_in_the_configuration_does_no_harm(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, MESSAGES)
    expected = served(store)
    store.close_now()
    again = bench.open(mapped_file_size_commit_log=1 << 20)
    assert any("mappedFileSizeCommitLog" in line for line in again.findings)
    assert served(again) == expected


@pytest.mark.parametrize("length", [9, 127, 128, 200])
def test_records_of_rocketmq_5_with_long_topics_are_read(bench: StoreBench, length: int) -> None:
    """Magic V2: the topic's length takes two bytes."""
    store = bench.open()
    fill(store, 10)
    at = store.max_physical_offset
    store.close_now()
    topic = "T" * length
    short = encode_record(
        topic="T",
        queue_id=1,
        queue_offset=0,
        physical_offset=at,
        body=b"five",
        properties_text="KEYS\x01k5",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1_700_000_000_000,
        store_host=HOST,
    )
    topic_at = short.index(b"five") + 4
    record = bytearray(short[:topic_at] + length.to_bytes(2, "big") + topic.encode() + short[topic_at + 2 :])
    record[:8] = len(record).to_bytes(4, "big") + b"\xda\xa3\x20\xab"
    overwrite(bench.log_files[0], at, bytes(record))
    (bench.root / "abort").touch()
    again = bench.open()
    assert served(again)[topic, 1] == [bytes(record)]
    assert again.record_at(at) == bytes(record)
    assert len(again.query(topic, "k5", 32, 0, 1 << 62).records) == 1
    again.close_now()
    assert bench.open().findings == []


def test_a_record_with_a_name_that_is_no_topic_ends_the_log(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 10)
    expected = served(store)
    at = store.max_physical_offset
    store.close_now()
    record = encode_record(
        topic="../../../etc",
        queue_id=1,
        queue_offset=0,
        physical_offset=at,
        body=b"x",
        properties_text="A\x01b",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
    )
    overwrite(bench.log_files[0], at, record)
    again = bench.open()
    assert served(again) == expected
    assert again.record_at(at) is None
    assert any("truncated after the last complete record" in line for line in again.findings)


def test_records_lost_with_half_a_log_file_are_passed_over(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, MESSAGES)
    expected = {raw for records in served(store).values() for raw in records}
    store.close_now()
    resize(bench.log_files[0], SEGMENT_BYTES // 2)
    again = bench.open()
    assert any("padded with zeros" in line for line in again.findings)
    found: set[bytes] = set()
    for queue in again.queues()["TopicTest"].values():
        offset = 0
        while offset < queue.max_offset():
            result = again.get_message(queue, offset, 32)
            assert result.next_begin_offset > offset
            body = b"".join(result.chunks)
            at = 0
            for _ in range(result.count):
                size = int.from_bytes(body[at : at + 4], "big")
                found.add(body[at : at + size])
                at += size
            assert at == len(body)
            offset = result.next_begin_offset
    assert len(found) > MESSAGES // 2
    assert found < expected
