"""Readers as Spark calls them, but without Spark: offsets, restarts, new queues, data loss, filters."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.interop.systems import System, start_namesrv
from tests.spark.conftest import MakeOptions
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from cometmq.client import Message
from cometmq.remoting.admin_headers import DeleteTopicFromNamesrvRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.spark.errors import DataLossError, OptionError, SparkSourceError, UnreachableError
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import SourceOptions
from cometmq.spark.source.planning import sized
from cometmq.spark.source.reader import FilteringReader, RangePartition, RocketMQReader
from cometmq.spark.source.stream_reader import RocketMQStreamReader
from cometmq.testing import SyncCluster, VirtualClock, wait_until

PLACE = StructType([StructField("queueId", IntegerType()), StructField("queueOffset", LongType())])
ALL = ReadAllAvailable()

Place = tuple[int, int]


def rows(reader: Any, partitions: Sequence[InputPartition]) -> list[Place]:
    return [
        (row["queueId"], row["queueOffset"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps offsets."""
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


class Query:
    """Plays Spark's part: keeps offsets, asks for batches, reads them."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.offset: dict[str, Any] | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = RocketMQStreamReader(self.options, PLACE)
        if self.offset is None or "initial" in self.offset:
            self.offset = through_json(self.reader.initialOffset())

    def plan(self, limit: ReadLimit = ALL) -> dict[str, Any] | None:
        assert self.offset is not None
        end = through_json(self.reader.latestOffset(self.offset, limit))
        return None if json.dumps(end) == json.dumps(self.offset) else end

    def batch(self, limit: ReadLimit = ALL) -> list[Place] | None:
        end = self.plan(limit)
        return None if end is None else self.run(end)

    def run(self, end: dict[str, Any]) -> list[Place]:
        assert self.offset is not None
        found = rows(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        return found


def everything(*counts: int) -> list[Place]:
    return [(queue_id, offset) for queue_id, count in enumerate(counts) for offset in range(count)]


# Streams ------------------------------------------------------------------------------------------


def test_a_stream_reads_everything_once_and_rests(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(100, queues=2)
    query = Query(options(topic, startingOffsets="earliest"))
    assert query.batch() == everything(50, 50)
    assert query.batch() is None
    topics.send(topic, 1, [b"more"] * 3)
    assert query.batch() == [(1, 50), (1, 51), (1, 52)]
    query.restart()
    assert query.batch() is None


def test_latest_is_fixed_by_the_first_batch_even_if_it_fails(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic))
    pinned = query.plan()
    assert pinned is not None, "with nothing to read there must still be a batch, or the start is not written down"
    topics.send(topic, 0, [b"x"] * 5)
    query.restart()  # as after a crash before the batch was done: Spark has its end, and asks for the start again
    assert query.run(pinned) == []
    assert query.batch() == [(0, offset) for offset in range(10, 15)]


def test_a_failed_batch_is_the_same_again(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(20, queues=2)
    query = Query(options(topic, startingOffsets="earliest"))
    end = query.plan()
    assert end is not None
    topics.send(topic, 0, [b"later"])
    query.restart()
    assert query.run(end) == everything(10, 10)


def test_a_group_that_others_consume_in_is_not_told_how_far_the_query_is(
    topics: Topics, options: MakeOptions, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.fill(10, queues=1)
    group = f"group-of-{topic}"
    given = options(topic, startingOffsets="earliest", commitGroup=group)
    cluster = Cluster(given)
    beat = HeartbeatData(client_id="member", consumer_data_set=[ConsumerData(group_name=group)])
    with BlockingConnection(topics.broker, 60) as consumer:
        consumer.invoke(RequestCode.HEART_BEAT, body=encode_body(beat))
        cluster.commit_offsets(group, {Queue(topic, topics.broker_name, 0): 3})  # as the consumer does
        query = Query(given)
        assert query.batch() == everything(10)
        assert query.batch() is None  # now it would be told
        assert cluster.committed_offsets(cluster.queues(), group) == {Queue(topic, topics.broker_name, 0): 3}
        assert f"group {group} does not get the offsets of the query: it has consumers at" in caplog.text


def test_the_rate_limit_is_kept_in_proportion(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=2)
    topics.send(topic, 0, [b"x"] * 90)
    topics.send(topic, 1, [b"x"] * 10)
    query = Query(options(topic, startingOffsets="earliest", maxOffsetsPerTrigger="20"))
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    found = []
    sizes = []
    while (batch := query.batch(limit)) is not None:
        found += batch
        sizes.append(len(batch))
    assert sorted(found) == everything(90, 10)
    assert max(sizes) <= 21
    assert len(sizes) == 5


def test_a_new_queue_is_read_from_its_beginning(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic))
    assert query.batch() == []
    topics.create(queues=2, name=topic)
    topics.send(topic, 1, [b"x"] * 4)
    assert query.batch() == [(1, offset) for offset in range(4)]


def test_available_now_ends_where_it_began_to_look(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(30, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    query.reader.prepareForTriggerAvailableNow()
    topics.send(topic, 0, [b"late"] * 5)
    assert query.batch(ReadMaxRows(20)) == [(0, offset) for offset in range(20)]
    assert query.batch(ReadMaxRows(20)) == [(0, offset) for offset in range(20, 30)]
    assert query.batch(ReadMaxRows(20)) is None
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report["queues"][topic]["broker-a"]["0"] == 35


def test_offsets_that_are_gone_are_data_loss(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    query.batch()
    assert query.offset is not None
    query.offset["queues"][topic]["broker-a"]["0"] = 500
    with pytest.raises(DataLossError, match=r"holds offsets 0 to 10, not 500 .*failOnDataLoss=false"):
        query.plan()
    tolerant = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    tolerant.offset = query.offset
    assert tolerant.batch() == []
    topics.send(topic, 0, [b"x"])
    assert tolerant.batch() == [(0, 10)]


def delete(topics: Topics, topic: str) -> None:
    """Take a topic from its broker and from the nameserver."""
    with BlockingConnection(topics.broker) as broker, BlockingConnection(topics.namesrv) as namesrv:
        in_broker, in_namesrv = DeleteTopicRequestHeader(topic), DeleteTopicFromNamesrvRequestHeader(topic)
        assert broker.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, in_broker).code == ResponseCode.SUCCESS
        assert namesrv.invoke(RequestCode.DELETE_TOPIC_IN_NAMESRV, in_namesrv).code == ResponseCode.SUCCESS


def test_a_topic_that_is_deleted_between_batches_is_data_loss(topics: Topics, options: MakeOptions) -> None:
    """Its broker is there and has it no more; a topic of that name that is made anew is another one."""
    topic, other = topics.fill(10, queues=1), topics.fill(3, queues=1)
    names = f"{topic},{other}"
    query = Query(options(names, startingOffsets="earliest"))
    assert len(query.batch() or []) == 13
    delete(topics, topic)
    with pytest.raises(DataLossError, match=rf"1 queues are no more on .* {topic}@broker-a:0 .*failOnDataLoss=false"):
        query.plan()
    tolerant = Query(options(names, startingOffsets="earliest", failOnDataLoss="false"))
    tolerant.offset = query.offset
    topics.send(other, 0, [b"x"])
    assert tolerant.batch() == [(0, 3)]
    topics.create(queues=1, name=topic)
    topics.send(topic, 0, [b"new"] * 2)
    assert tolerant.batch() == [(0, 0), (0, 1)]


def test_a_stream_of_a_topic_that_is_nowhere_does_not_begin(options: MakeOptions) -> None:
    with pytest.raises(SparkSourceError, match="has topic no-such-topic"):
        Query(options("no-such-topic")).plan()


def test_a_broker_that_is_away_keeps_its_offsets(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    query.batch()
    assert query.offset is not None
    query.offset["queues"][topic] = {"broker-a": {"0": 10}, "broker-z": {"0": 7}}
    topics.send(topic, 0, [b"x"])
    assert query.batch() == [(0, 10)]
    assert query.offset["queues"][topic]["broker-z"] == {"0": 7}
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="broker-z"):
        query.plan()


def test_a_broker_that_is_registered_but_silent(topics: Topics, options: MakeOptions) -> None:
    """A stream that runs goes on without it; a batch asks until its time is over, then names it."""
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    assert query.batch() == everything(10)
    with topics.registered("broker-silent", "127.0.0.1:9", topic):
        topics.send(topic, 0, [b"x"])
        assert query.batch() == [(0, 10)]
        with pytest.raises(UnreachableError, match="broker broker-silent does not answer"):
            read(options(topic, pollTimeoutMs="500"))
    assert query.batch() is None


def test_a_stream_waits_for_nameservers_that_are_away(topics: Topics, options: MakeOptions, tmp_path: Path) -> None:
    """But it does not begin without one, and neither does a run over what is available now."""
    topic = topics.fill(10, queues=1)
    namesrv = start_namesrv(System.COMETMQ, tmp_path)
    given = options(topic, namesrvAddr=namesrv.address, startingOffsets="earliest")
    query = Query(given)
    own = Topics(namesrv.address, topics.broker)
    with suppress(BlockingConnectionError), own.registered("broker-a", topics.broker, topic):
        assert query.batch() == everything(10)
        namesrv.kill()
    topics.send(topic, 0, [b"x"])
    assert query.batch() is None
    with pytest.raises(UnreachableError, match="no nameserver answers"):
        Query(given).plan()
    with pytest.raises(UnreachableError, match="no nameserver answers"):
        query.reader.prepareForTriggerAvailableNow()
    again = start_namesrv(System.COMETMQ, tmp_path, namesrv.port)
    with again, own.registered("broker-a", topics.broker, topic):
        assert query.batch() == [(0, 10)]


def test_a_pattern_finds_topics_as_they_come(topics: Topics, options: MakeOptions) -> None:
    from cometmq.spark.source.options import parse_options

    first = topics.fill(4, queues=1)
    query = Query(
        parse_options({"namesrvAddr": topics.namesrv, "subscribePattern": f"{first}.*", "startingOffsets": "earliest"})
    )
    assert query.batch() == everything(4)
    second = topics.create(queues=1, name=f"{first}-b")
    topics.send(second, 0, [b"x"] * 2)
    assert query.batch() == everything(2)


def test_an_offset_of_a_later_version_is_refused(topics: Topics, options: MakeOptions) -> None:
    query = Query(options(topics.fill(1, queues=1)))
    query.offset = {"v": 2}
    with pytest.raises(SparkSourceError, match="version 2"):
        query.plan()


def test_readers_travel_to_executors(topics: Topics, options: MakeOptions) -> None:
    """A copy in another process reads the plan of the driver."""
    topic = topics.fill(10, queues=1)
    batch = RocketMQReader(options(topic), PLACE)
    stream = RocketMQStreamReader(options(topic, startingOffsets="earliest"), PLACE)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    for reader, partitions in (
        (batch, batch.partitions()),
        (stream, stream.partitions(stream.initialOffset(), end)),
    ):
        copy, parts = pickle.loads(pickle.dumps((reader, partitions)))
        assert rows(copy, parts) == everything(10)


# Batches ------------------------------------------------------------------------------------------


def read(options: SourceOptions) -> list[Place]:
    reader = RocketMQReader(options, PLACE)
    return rows(reader, reader.partitions())


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


def test_partitions_are_cut_by_bytes(topics: Topics, options: MakeOptions) -> None:
    """A few large messages weigh as much as many small ones, in other queues and within one."""
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


def _offsets(part: OffsetRange) -> range:
    return range(part.first, part.end)


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
    known, unknown = sized(cluster, [OffsetRange(queue, 0, 10), OffsetRange(queue, 1000, 1010)])
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


# Filters at the broker, limits, groups -------------------------------------------------------------


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
    with pytest.raises(SparkSourceError, match="refused"):
        read(options(topic, sqlFilter="n >"))


def test_a_filtered_stream_passes_over_what_does_not_match(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=1)
    topics.send(topic, 0, [b"x"] * 3, properties="TAGS\x01no")
    query = Query(options(topic, startingOffsets="earliest", tags="yes"))
    assert query.batch() == []
    assert query.batch() is None
    topics.send(topic, 0, [b"x"], properties="TAGS\x01yes")
    assert query.batch() == [(0, 3)]


def test_times_by_topic(topics: Topics, options: MakeOptions) -> None:
    first, second = topics.fill(4, queues=1), topics.fill(4, queues=1)
    late = json.dumps({second: 1 << 42})
    assert len(read(options(f"{first},{second}", startingTimestamp=late))) == 4
    assert len(read(options(f"{first},{second}", endingTimestamp=json.dumps({second: "1999-01-01"})))) == 4
    with pytest.raises(OptionError, match="not read"):
        read(options(first, startingTimestamp=late))


def test_a_limit_in_bytes(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=2)
    topics.send(topic, 0, [bytes(1000)] * 40)
    topics.send(topic, 1, [bytes(10)] * 40)
    query = Query(options(topic, startingOffsets="earliest", maxBytesPerTrigger="12k"))
    sizes = []
    while (batch := query.batch()) is not None:
        sizes.append(sum(1100 if queue_id == 0 else 110 for queue_id, _ in batch))
    assert sum(sizes) == 40 * 1210
    assert max(sizes) <= 15_000


def test_a_small_batch_waits_for_more_or_for_its_time(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    clock = VirtualClock()
    asked = options(topic, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="10m")
    query = Query(asked)
    query.reader = RocketMQStreamReader(asked, PLACE, clock=clock)
    assert len(query.batch() or []) == 10
    topics.send(topic, 0, [b"x"] * 3)
    assert query.batch() is None
    topics.send(topic, 0, [b"x"] * 2)
    assert len(query.batch() or []) == 5
    topics.send(topic, 0, [b"x"])
    clock.advance(599)
    assert query.batch() is None
    clock.advance(1)
    assert len(query.batch() or []) == 1


def test_a_batch_that_is_full_by_its_bytes_does_not_wait(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(1, queues=1)
    asked = options(
        topic, startingOffsets="earliest", minOffsetsPerTrigger="1000", maxTriggerDelay="10m", maxBytesPerTrigger="4000"
    )
    query = Query(asked)
    query.reader = RocketMQStreamReader(asked, PLACE, clock=VirtualClock())
    assert len(query.batch() or []) == 1
    topics.send(topic, 0, [b"x" * 1000] * 2)
    assert query.batch() is None
    topics.send(topic, 0, [b"x" * 1000] * 3)
    assert 1 < len(query.batch() or []) < 5


def test_a_stream_begins_at_times_by_topic(topics: Topics, options: MakeOptions) -> None:
    early, late, other = (topics.fill(4, queues=1) for _ in range(3))
    names, future = f"{early},{late},{other}", 1 << 42
    query = Query(options(names, startingTimestamp=json.dumps({early: 0, late: future})))
    assert query.batch() == everything(4) * 2, "topics that are not named begin at the earliest offset"
    for topic in (early, late, other):
        topics.send(topic, 0, [b"x"])
    assert query.batch() == [(0, 4)] * 3
    assert Query(options(names, startingTimestamp=future)).batch() == []


def test_a_slave_is_read_where_there_is_one(topics: Topics, options: MakeOptions) -> None:
    """Of two brokers one has a slave, and a master that is silent; of the other the master is read all the same."""
    topic = topics.fill(3, queues=1)
    slave = f"localhost:{topics.broker.rpartition(':')[2]}"  # another name for the broker that is there
    with (
        topics.registered("broker-m", "127.0.0.1:9", topic),
        topics.registered("broker-m", slave, topic, broker_id=1),
    ):
        assert read(options(topic, readFrom="slave")) == everything(3) * 2
        with pytest.raises(UnreachableError, match="broker broker-m does not answer"):
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
        ({"tags": "A", "sqlFilter": "a = 1"}, "exclude"),
        ({"maxBytesPerTrigger": "ten"}, "64m"),
        ({"maxTriggerDelay": "soon"}, "15m"),
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

    texts = ["DELAY\x013\x02PGROUP\x01pg", "TIMER_DELIVER_MS\x011700000000123", "DELAY\x01x\x02TIMER_DELIVER_MS\x01y"]
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
    schema = arrow_schema(["delayLevel", "deliverTimestamp", "transactionType", "producerGroup"])
    (batch,) = decode(Records(stored), schema)
    found = batch.to_pydict()
    assert found["delayLevel"] == [3, None, None]
    assert [moment and round(moment.timestamp() * 1000) for moment in found["deliverTimestamp"]] == [
        None,
        1_700_000_000_123,
        None,
    ]
    assert found["transactionType"] == ["COMMIT", None, None]
    assert found["producerGroup"] == ["pg", None, None]
