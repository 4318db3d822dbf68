"""Reading a store's files without a broker: real Apache stores, damage of many kinds, the same rows through Spark."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from tests.helpers.unpack import unpack
from tests.spark.store_files import HOST, Row, bad_records, damage, rows_of, write_store

from cometmq.message.names import SYSTEM_TOPICS
from cometmq.spark.errors import OptionError, StoreReadError
from cometmq.spark.store import scan as store_scan
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.reader import StoreReader, StoreScan
from cometmq.spark.store.scan import sound_records, splits
from cometmq.storage import open_storage
from cometmq.store.config import StoreConfig
from cometmq.store.log.commit_log import filler
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock


@pytest.fixture(params=["clean", "killed", "torn", "v6"])
def apache_store(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> tuple[Path, set[Row]]:
    """A store that Apache RocketMQ wrote, and what its broker served from it."""
    source = golden / "stores" / request.param
    unpack(source / "store.tar.gz", tmp_path)
    with gzip.open(source / "manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
        truth = [line for line in map(json.loads, lines) if line["kind"] == "message"]
    return tmp_path / "store", {
        (line["topic"], line["queueId"], line["queueOffset"], line["recordSha256"]) for line in truth
    }


def test_an_apache_store_gives_what_its_broker_served(apache_store: tuple[Path, set[Row]], tmp_path: Path) -> None:
    directory, truth = apache_store
    topics = sorted({topic for topic, *_ in truth})
    found = rows_of(directory, topic=",".join(topics), badRecordsPath=tmp_path / "bad")
    assert len(found) == len(set(found))
    assert set(found) == truth


def test_without_names_it_reads_ordinary_topics(apache_store: tuple[Path, set[Row]], tmp_path: Path) -> None:
    directory, truth = apache_store
    ordinary = {row for row in truth if row[0] not in SYSTEM_TOPICS and not row[0].startswith("%")}
    assert set(rows_of(directory, badRecordsPath=tmp_path / "bad")) == ordinary


def test_the_log_alone_is_enough(apache_store: tuple[Path, set[Row]], tmp_path: Path) -> None:
    directory, truth = apache_store
    shutil.rmtree(directory / "consumequeue")
    topics = sorted({topic for topic, *_ in truth})
    found = set(rows_of(directory / "commitlog", topic=",".join(topics), badRecordsPath=tmp_path / "bad"))
    assert truth <= found


def test_tags_are_those_of_the_records_where_units_have_addresses_of_an_extension(golden: Path, tmp_path: Path) -> None:
    """A store with ``enableConsumeQueueExt``, which no broker of ours has opened."""
    unpack(golden / "stores" / "ext" / "store.tar.gz", tmp_path)
    parsed = parse_store_options({"path": str(tmp_path / "store"), "topic": "Ext"})
    reader = StoreScan(parsed)
    for use in ("true", "false"):
        parsed = parse_store_options({"path": str(tmp_path / "store"), "topic": "Ext", "useConsumeQueue": use})
        found = [records for stretch in splits(parsed) for records in reader.records(stretch)]
        assert sum(len(records) for records in found) == 62
        assert sum(len(records.tagged(frozenset({"b"}))) for records in found) == 20


# --- stores of our own ---------------------------------------------------------------------------
BODY_AT = 88
DAMAGE = {
    "a body that changed": (BODY_AT, b"\xff\xff", "CRC"),
    "another magic": (4, b"\0\0\0\0", "magic"),
    "a place of another record": (28, struct.pack(">q", 12345), "place in the log"),
    "a size that is too large": (0, struct.pack(">i", 1 << 29), "claims"),
    "a size that is too small": (0, struct.pack(">i", 95), "magic|add up|does not fit"),
    "a size below that of any record": (0, struct.pack(">i", 60), "claims"),
    "a negative size": (0, struct.pack(">i", -1), "claims"),
    "a body length that is wild": (84, struct.pack(">i", -5), "does not fit"),
    "zeros over all of it": (0, bytes(120), "magic"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_set_aside_and_all_others_are_read(tmp_path: Path, kind: str) -> None:
    at, data, reason = DAMAGE[kind]
    offsets = write_store(tmp_path / "store", 300, body=lambda number: b"%050d" % number)
    whole = rows_of(tmp_path / "store")
    damage(tmp_path / "store", offsets[150] + at, data)
    with pytest.raises(StoreReadError, match="badRecordsPath"):
        rows_of(tmp_path / "store")
    found = rows_of(tmp_path / "store", badRecordsPath=tmp_path / "bad")
    assert found == [row for number, row in enumerate(whole) if number != 150]
    bad_lines = bad_records(tmp_path / "bad")
    assert bad_lines[0]["logOffset"] == offsets[150]
    assert sum(bad["size"] for bad in bad_lines) == offsets[151] - offsets[150]
    assert any(part in bad_lines[0]["reason"] for part in reason.split("|"))


@pytest.mark.parametrize("parts", [1, 8])
def test_what_looks_like_the_end_of_a_file_hides_no_record_behind_it(tmp_path: Path, parts: int) -> None:
    segment = 1 << 20
    offsets = write_store(tmp_path / "store", 300, body=lambda number: b"%050d" % number)
    whole = rows_of(tmp_path / "store")
    for number in (0, 150, 298):
        damage(tmp_path / "store", offsets[number], filler(segment - offsets[number]))
    found = rows_of(tmp_path / "store", badRecordsPath=tmp_path / "bad", minPartitions=parts)
    assert found == [row for number, row in enumerate(whole) if number not in (0, 150, 298)]
    bad_lines = bad_records(tmp_path / "bad")
    assert [bad["logOffset"] for bad in bad_lines] == [offsets[0], offsets[150], offsets[298]]
    assert {bad["reason"] for bad in bad_lines} == {"it marks the end of the file, and records follow"}


def test_older_records_behind_the_end_of_a_file_stay_unread(tmp_path: Path) -> None:
    """Apache leaves there what it cut off."""
    segment = 1 << 20
    offsets = write_store(tmp_path, 100, body=lambda number: b"%050d" % number)
    whole = rows_of(tmp_path)
    damage(tmp_path, offsets[50], filler(segment - offsets[50]))
    for number in range(51, 100):
        damage(tmp_path, offsets[number] + 56, (1).to_bytes(8, "big"))
    assert rows_of(tmp_path) == whole[:50]


def test_tasks_that_read_the_same_at_once_tell_its_damage_once(tmp_path: Path) -> None:
    offsets = write_store(tmp_path / "store", 60, body=lambda number: b"%050d" % number)
    damage(tmp_path / "store", offsets[30] + BODY_AT, b"\xff\xff")
    [stretch] = splits(parse_store_options({"path": str(tmp_path / "store")}))

    def rows(_: int) -> int:
        return sum(len(records) for records in sound_records(stretch, open_storage(tmp_path / "bad")))

    with ThreadPoolExecutor(4) as tasks:
        assert list(tasks.map(rows, range(100))) == [59] * 100
    assert [path.suffix for path in (tmp_path / "bad").iterdir()] == [".json"]
    assert len(bad_records(tmp_path / "bad")) == 1


def test_a_record_inside_a_body_is_not_taken_for_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    offsets = write_store(other, 10, body=lambda number: b"x" * 60)
    record = (other / "commitlog" / f"{0:020d}").read_bytes()[offsets[3] : offsets[4]]
    write_store(tmp_path / "store", 20, body=lambda number: record if number == 5 else b"y")
    found = rows_of(tmp_path / "store")
    assert len(found) == 20
    where = write_store(tmp_path / "again", 20, body=lambda number: record if number == 5 else b"y")[5]
    damage(tmp_path / "again", where + 4, b"\0\0\0\0")
    assert len(rows_of(tmp_path / "again", badRecordsPath=tmp_path / "bad")) == 19


def test_several_files_and_parts_give_every_record_once(tmp_path: Path) -> None:
    write_store(tmp_path, 3000, body=lambda number: b"%0200d" % number, segment=1 << 17)
    parsed = parse_store_options({"path": str(tmp_path), "minPartitions": "40"})
    assert len(splits(parsed)) >= 30
    rows = rows_of(tmp_path, minPartitions=40)
    assert len(rows) == len(set(rows)) == 3000
    assert rows == rows_of(tmp_path)


def test_however_many_records_are_checked_together_they_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = write_store(tmp_path / "store", 300, body=lambda number: b"%050d" % number)
    damage(tmp_path / "store", offsets[150] + BODY_AT, b"\xff\xff")
    parsed = parse_store_options({"path": str(tmp_path / "store"), "badRecordsPath": str(tmp_path / "bad")})
    [stretch] = splits(parsed)

    def places(chunk_bytes: int) -> list[list[int]]:
        return [part.physical_offsets.tolist() for part in StoreScan(parsed).records(stretch, chunk_bytes)]

    whole = places(1 << 20)
    assert [len(part) for part in whole] == [150, 149]
    apart = places(offsets[20])
    assert len(apart) == 16
    monkeypatch.setattr(store_scan, "_CHUNK_RECORDS", 7)
    few = places(1 << 20)
    assert max(map(len, few)) == 7
    for parts in (whole, apart, few):
        assert [at for part in parts for at in part] == [at for at in offsets if at != offsets[150]]


def test_a_file_made_ahead_of_need_is_not_taken_for_the_end_of_the_log(tmp_path: Path) -> None:
    write_store(tmp_path, 300, body=lambda number: b"%050d" % number)
    whole = rows_of(tmp_path)
    with (tmp_path / "commitlog" / f"{1 << 20:020d}").open("wb") as file:
        file.truncate(1 << 20)
    assert rows_of(tmp_path) == whole, "the zeros at the end of the file before it are no damage"
    assert len(whole) == 300


def test_a_topic_that_the_store_does_not_have_is_told(tmp_path: Path) -> None:
    write_store(tmp_path, 3, body=lambda number: b"%d" % number, topic="orders")

    def reader(topic: str, use_consume_queue: str = "true") -> StoreReader:
        named = {"path": str(tmp_path), "topic": topic, "useConsumeQueue": use_consume_queue}
        return StoreReader(parse_store_options(named), StructType())

    with pytest.raises(OptionError, match=r"has no topic order \(did you mean orders\?\)"):
        reader("order").partitions()
    shutil.rmtree(tmp_path / "consumequeue" / "orders")
    with pytest.raises(OptionError, match=r"has no topic orders \(useConsumeQueue=false"):
        reader("orders").partitions()
    assert len(reader("orders", "false").partitions()) == 1
    assert len(rows_of(tmp_path, topic="orders", useConsumeQueue="false")) == 3


def test_times_choose(tmp_path: Path) -> None:
    write_store(tmp_path, 100, body=lambda number: b"z")
    start = VirtualClock().now_ms()
    assert len(rows_of(tmp_path, startingTimestamp=start + 11, endingTimestamp=start + 21)) == 10


@pytest.mark.parametrize("new", [1, 4, 5, 9])
@pytest.mark.parametrize("has_queues", [True, False])
def test_the_same_topic_made_anew_shows_only_its_new_life(tmp_path: Path, new: int, has_queues: bool) -> None:
    """The queue tells, also where it is shorter than it was; without it the broker's table of deleted topics."""
    config = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 20)
    store = MessageStore.open(config)
    for life, count in ((b"old", 5), (b"new", new)):
        for _ in range(count):
            store.batch.put(store.queue("T", 0), NewRecord(life, b"", 0, 0, 0, HOST, HOST, 0, 0, 0, ()))
        store.batch.commit()
        if life == b"old":
            store.delete_topic("T")
            deleted = {"T": {"position": store.max_physical_offset, "timeMs": 0}}
    store.close_now()
    if not has_queues:
        shutil.rmtree(tmp_path / "consumequeue")
        (tmp_path / "comet" / "deletedTopics.json").write_text(json.dumps({"topics": deleted}))
    parsed = parse_store_options({"path": str(tmp_path), "topic": "T"})
    bodies = [
        body
        for stretch in splits(parsed)
        for records in StoreScan(parsed).records(stretch)
        for body in records.stored_bodies().to_pylist()
    ]
    assert bodies == [b"new"] * new


@example([(1, b"\x01")])  # a size that leads beyond the last record, into bytes that were never written
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 40_000), st.binary(min_size=1, max_size=40)), min_size=1, max_size=6))
def test_whatever_is_overwritten_no_record_is_read_wrong(
    tmp_path_factory: pytest.TempPathFactory, wounds: list[tuple[int, bytes]]
) -> None:
    directory = tmp_path_factory.mktemp("wounded")
    offsets = write_store(directory / "store", 250, body=lambda number: b"%040d" % number)
    whole = rows_of(directory / "store")
    ends = [*offsets[1:], offsets[-1] + offsets[-1] - offsets[-2]]
    for at, data in wounds:
        damage(directory / "store", at, data)
    found = set(rows_of(directory / "store", badRecordsPath=directory / "bad"))
    untouched = {
        row
        for row, begin, end in zip(whole, offsets, ends, strict=True)
        if all(at + len(data) <= begin or at >= end for at, data in wounds)
    }
    assert untouched <= found
    changed_properties_or_fields = found - set(whole)  # no CRC covers them
    assert len(changed_properties_or_fields) <= len(wounds) * 2
    shutil.rmtree(directory)


def test_wrong_options_say_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean badRecordsPath"):
        parse_store_options({"path": "/x", "badRecordPath": "/y"})
    with pytest.raises(OptionError, match="load"):
        parse_store_options({})
    with pytest.raises(StoreReadError, match="20 digits"):
        splits(parse_store_options({"path": str(tmp_path)}))
    with pytest.raises(StoreReadError, match="executors"):
        splits(parse_store_options({"path": str(tmp_path / "absent")}))


@pytest.mark.spark
def test_spark_reads_a_store_as_a_table(spark: Any, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 500, body=lambda number: b"%d" % number)
    frame = spark.read.format("rocketmq_store").option("brokerName", "b").load(str(tmp_path / "store"))
    assert frame.count() == 500
    first = frame.where("queueOffset = 0 AND queueId = 1").collect()[0]
    assert (bytes(first.body), first.tags, first["keys"], first.brokerName) == (b"1", "t1", "k1", "b")
    few = spark.read.format("rocketmq_store").schema("queueOffset bigint, keys string").load(str(tmp_path / "store"))
    assert {row["keys"] for row in few.collect()} == {f"k{number}" for number in range(500)}
