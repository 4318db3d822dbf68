"""A reader of batches as Spark calls it, but without Spark: ranges, partitions, filters, slaves, columns."""

from __future__ import annotations

import json

import pytest
from tests.spark.conftest import MakeOptions
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from tests.spark.source.reading import PLACE, everything, read, rows

from cometmq.client import Message
from cometmq.spark.errors import OptionError, SparkSourceError, UnreachableError
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.reader import FilteringReader, RangePartition, RocketMQReader
from cometmq.testing import SyncCluster, wait_until

Place = tuple[int, int]


def _offsets(part: OffsetRange) -> range:
    return range(part.first, part.end)


def test_a_batch_between_offsets(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(100, queues=2)
    start = json.dumps({topic: {"broker-a": {"0": 45}}})
    end = json.dumps({topic: {"broker-a": {"0": "latest", "1": 2}}})
    assert read(options(topic, startingOffsets=start, endingOffsets=end)) == [
        *((0, offset) for offset in range(45, 50)),
        (1, 0),
        (1, 1),
    ]


def test_a_batch_between_times(topics: Topics, options: MakeOptions) -> None:
    import time

    topic = topics.create(queues=1)
    topics.send(topic, 0, [b"x"] * 3)
    begin_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= begin_ms:
        pass
    topics.send(topic, 0, [b"x"] * 4)
    assert read(options(topic, startingTimestamp=begin_ms)) == [(0, offset) for offset in range(3, 7)]
    assert read(options(topic, endingTimestamp=begin_ms)) == [(0, offset) for offset in range(3)]
    assert read(options(topic, startingTimestamp=begin_ms + 3_600_000)) == []


def test_min_partitions_cut_a_queue(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(100, queues=1)
    reader = RocketMQReader(options(topic, minPartitions="5"), PLACE)
    partitions = reader.partitions()
    assert len(partitions) == 5
    assert rows(reader, partitions) == everything(100)


def test_partitions_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch, topics: Topics, options: MakeOptions) -> None:
    """A few large messages weigh as much as many small ones, in other queues and within one."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    topic = topics.create(queues=2)
    topics.send(topic, 0, [bytes(100)] * 1400 + [bytes(5_000)] * 600)
    topics.send(topic, 1, [bytes(100)] * 2000)
    reader = RocketMQReader(options(topic, maxPartitionBytes="256k"), PLACE)
    partitions = reader.partitions()
    assert sorted(rows(reader, partitions)) == [(0, n) for n in range(2000)] + [(1, n) for n in range(2000)]
    bytes_of = [
        sum(5_150 if part.queue.queue_id == 0 and at >= 1400 else 240 for part in of.ranges for at in _offsets(part))
        for of in partitions
        if isinstance(of, RangePartition)
    ]
    assert sum(bytes_of) / len(bytes_of) > 0.6 * (256 << 10), bytes_of
    assert max(bytes_of) < 2.2 * (256 << 10), "where sizes change within a part that was looked at"


def test_a_broker_that_does_not_tell_sizes_is_cut_by_messages(topics: Topics, options: MakeOptions) -> None:
    """Messages may have gone since: only the cut is another one then."""
    topic = topics.fill(100, queues=1)
    cluster = Cluster(options(topic))
    (queue,) = cluster.queues()
    assert cluster.record_sizes([(queue, 50, 16), (queue, 1 << 40, 16), (Queue("none", queue.broker, 0), 0, 1)]) == [
        pytest.approx(250, abs=60),
        None,
        None,
    ]
    known, unknown = cluster.sized_ranges([OffsetRange(queue, 0, 10), OffsetRange(queue, 1000, 1010)])
    assert known.mean_bytes == unknown.mean_bytes


def test_many_queues_share_a_partition(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(160, queues=16)
    reader = RocketMQReader(options(topic), PLACE)
    assert len(reader.partitions()) == 1


def test_nothing_to_read(topics: Topics, options: MakeOptions) -> None:
    reader = RocketMQReader(options(topics.create(queues=1)), PLACE)
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


def test_an_unknown_topic_is_named(options: MakeOptions) -> None:
    with pytest.raises(SparkSourceError, match="has topic no-such-topic"):
        read(options("no-such-topic"))


def test_offsets_for_queues_that_are_not_there_are_refused(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(1, queues=1)
    wrong = json.dumps({topic: {"broker-b": {"0": 1}}})
    with pytest.raises(OptionError, match=f"names {topic}/broker-b"):
        read(options(topic, startingOffsets=wrong))


def test_filters_narrow_the_ranges(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(100, queues=4)
    reader = FilteringReader(options(topic), PLACE)
    filters = [EqualTo(("queueId",), 2), GreaterThanOrEqual(("queueOffset",), 5), LessThan(("queueOffset",), 8)]
    assert list(reader.pushFilters(filters)) == filters, "Spark must apply them itself, too"
    (partition,) = reader.partitions()
    assert isinstance(partition, RangePartition)
    assert [(part.queue.queue_id, part.first, part.end) for part in partition.ranges] == [(2, 5, 9)]
    assert isinstance(partition.ranges[0], OffsetRange)


def test_the_broker_hands_on_only_messages_with_the_tags(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=1)
    for tag in ("Aa", "BB", "C", "Aa", "D"):  # Aa and BB have the same hash, which is all that a broker compares
        topics.send(topic, 0, [b"x"] * 2, properties=f"TAGS\x01{tag}")
    topics.send(topic, 0, [b"x"], properties="")
    assert read(options(topic, tags="Aa")) == [(0, offset) for offset in (0, 1, 6, 7)]
    assert read(options(topic, tags="BB || D")) == [(0, offset) for offset in (2, 3, 8, 9)]
    assert read(options(topic, tags="None")) == []


def test_the_broker_evaluates_sql(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=2)
    for number in range(6):
        topics.send(topic, number % 2, [b"x"], properties=f"n\x01{number}")
    assert sorted(read(options(topic, sqlFilter="n >= 2 AND n <> 4"))) == [(0, 1), (1, 1), (1, 2)]
    with pytest.raises(SparkSourceError, match="failed with code"):
        read(options(topic, sqlFilter="n >"))


def test_times_by_topic(topics: Topics, options: MakeOptions) -> None:
    first, second = topics.fill(4, queues=1), topics.fill(4, queues=1)
    late = json.dumps({second: 1 << 42})
    assert len(read(options(f"{first},{second}", startingTimestamp=late))) == 4
    assert len(read(options(f"{first},{second}", endingTimestamp=json.dumps({second: "1999-01-01"})))) == 4
    with pytest.raises(OptionError, match="not read"):
        read(options(first, startingTimestamp=late))


def test_a_slave_is_read_where_there_is_one(topics: Topics, options: MakeOptions) -> None:
    """Of two brokers one has a slave, and a master that is silent; of the other the master is read all the same."""
    topic = topics.fill(3, queues=1)
    slave = f"localhost:{topics.broker.rpartition(':')[2]}"  # another name for the broker that is there
    with (
        topics.registered("broker-m", "127.0.0.1:9", topic),
        topics.registered("broker-m", slave, topic, broker_id=1),
    ):
        assert read(options(topic, readFrom="slave")) == everything(3) * 2
        with pytest.raises(UnreachableError, match="broker broker-m does not respond"):
            read(options(topic, pollTimeoutMs="500"))


def test_a_slave_is_read_while_its_master_is_gone(options: MakeOptions) -> None:
    with SyncCluster(slaves=1) as cluster:
        cluster.create_topic("T", 1)
        for number in range(20):
            cluster.send(Message("T", b"%d" % number))
        assert cluster.call(wait_until(cluster.clock, cluster.cluster.has_replicated, 60))
        cluster.kill_broker(0)
        assert read(options("T", namesrvAddr=cluster.namesrv_address, readFrom="slave")) == [
            (0, offset) for offset in range(20)
        ]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"tags": "*"}, "tags such as"),
        ({"tags": "A", "sqlFilter": "a = 1"}, "cannot be combined"),
        ({"maxBytesPerTrigger": "ten"}, "64m"),
        ({"maxTriggerDelay": "soon"}, "a duration such as .*1h30m"),
        ({"readFrom": "both"}, "slave"),
        ({"startingTimestamp": "{"}, "JSON"),
    ],
)
def test_wrong_values_are_told(options: MakeOptions, wrong: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        options("T", **wrong)


def test_a_batch_has_no_group_and_no_rate(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(1, queues=1)
    for name, value in (("commitGroup", "g"), ("maxBytesPerTrigger", "1m")):
        with pytest.raises(OptionError, match="streams"):
            read(options(topic, **{name: value}))


def test_columns_of_delay_and_transaction(topics: Topics, options: MakeOptions) -> None:
    from cometmq.message.record import encode_record
    from cometmq.spark.records.columns import arrow_schema
    from cometmq.spark.records.decode import Records, decode

    texts = [
        "DELAY\x013\x02PGROUP\x01pg\x02_SYS_MSG_PRIORITY_\x01-1",
        "TIMER_DELIVER_MS\x011700000000123\x02_SYS_MSG_PRIORITY_\x017\x02COMETMQ_EXPIRES_MS\x011700000000456",
        "DELAY\x01x\x02TIMER_DELIVER_MS\x01y\x02_SYS_MSG_PRIORITY_\x012147483648\x02COMETMQ_EXPIRES_MS\x01z",
    ]
    stored = b"".join(
        encode_record(
            topic="T",
            queue_id=0,
            queue_offset=number,
            physical_offset=0,
            body=b"",
            properties_text=text,
            sys_flag=8 if number == 0 else 0,
            born_timestamp=0,
            born_host=bytes(8),
            store_timestamp=0,
            store_host=bytes(8),
        )
        for number, text in enumerate(texts)
    )
    schema = arrow_schema(
        ["delayLevel", "deliverTimestamp", "priority", "expireTimestamp", "transactionType", "producerGroup"]
    )
    (batch,) = decode(Records(stored), schema)
    found = batch.to_pydict()
    assert found["delayLevel"] == [3, None, None]
    assert found["priority"] == [None, 7, None]
    assert [moment and round(moment.timestamp() * 1000) for moment in found["deliverTimestamp"]] == [
        None,
        1_700_000_000_123,
        None,
    ]
    assert [moment and round(moment.timestamp() * 1000) for moment in found["expireTimestamp"]] == [
        None,
        1_700_000_000_456,
        None,
    ]
    assert found["transactionType"] == ["COMMIT", None, None]
    assert found["producerGroup"] == ["pg", None, None]


def test_a_batch_that_ends_before_it_begins_is_refused(topics: Topics, options: MakeOptions) -> None:
    """Offsets that are swapped would give no rows, and no word; equal ones are an empty batch on purpose."""
    topic = topics.fill(60, queues=1)

    def at(offset: int | str) -> str:
        return json.dumps({topic: {"broker-a": {"0": offset}}})

    with pytest.raises(OptionError, match=rf"the read of {topic}@broker-a:0 begins at .* ends earlier.*swapped"):
        read(options(topic, startingOffsets=at(50), endingOffsets=at(10)))
    for start, end in (("latest", 10), (10, "earliest"), (-1, 60)):
        with pytest.raises(OptionError, match="a batch cannot"):
            read(options(topic, startingOffsets=at(start), endingOffsets=at(end)))
    with pytest.raises(OptionError, match=r"begins at offset 60 and ends earlier, at 10"):
        read(options(topic, startingTimestamp="2100-01-01", endingOffsets=at(10)))
    assert read(options(topic, startingOffsets=at(10), endingOffsets=at(10))) == []
    assert read(options(topic, startingOffsets=at(10), endingOffsets=at(12))) == [(0, 10), (0, 11)]
