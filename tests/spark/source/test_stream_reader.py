"""A reader of streams as Spark calls it, but without Spark: offsets, restarts, new queues, data loss, limits."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.interop.systems import System, start_namesrv
from tests.spark.conftest import MakeOptions
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from tests.spark.source.reading import PLACE, everything, read, rows

from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.spark.errors import DataLossError, SparkSourceError, UnreachableError
from cometmq.spark.records.queues import Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import SourceOptions
from cometmq.spark.source.reader import RocketMQReader
from cometmq.spark.source.stream_reader import RocketMQStreamReader
from cometmq.testing import VirtualClock

ALL = ReadAllAvailable()
Place = tuple[int, int]


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

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any] | None:
        """Plan a batch, within the limits of the options if no other is given."""
        assert self.offset is not None
        end = through_json(self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit()))
        return None if json.dumps(end) == json.dumps(self.offset) else end

    def batch(self, limit: ReadLimit | None = None) -> list[Place] | None:
        end = self.plan(limit)
        return None if end is None else self.run(end)

    def run(self, end: dict[str, Any]) -> list[Place]:
        assert self.offset is not None
        found = rows(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        return found


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
        assert f"group {group} does not get the offsets of the query: the group has consumers on" in caplog.text


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
    with pytest.raises(DataLossError, match=r"contains offsets 0 to 10, not 500 .*failOnDataLoss=false"):
        query.plan()
    tolerant = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    tolerant.offset = query.offset
    assert tolerant.batch() == []
    topics.send(topic, 0, [b"x"])
    assert tolerant.batch() == [(0, 10)]


def test_a_topic_that_is_deleted_between_batches_is_data_loss(topics: Topics, options: MakeOptions) -> None:
    """Its broker is there and has it no more; a topic of that name that is made anew is another one."""
    topic, other = topics.fill(10, queues=1), topics.fill(3, queues=1)
    names = f"{topic},{other}"
    query = Query(options(names, startingOffsets="earliest"))
    assert len(query.batch() or []) == 13
    topics.delete(topic)
    with pytest.raises(
        DataLossError, match=rf"1 queues no longer exist on .* {topic}@broker-a:0 .*failOnDataLoss=false"
    ):
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
        with pytest.raises(UnreachableError, match="broker broker-silent does not respond"):
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
    with pytest.raises(UnreachableError, match="no nameserver responds"):
        Query(given).plan()
    with pytest.raises(UnreachableError, match="no nameserver responds"):
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


def test_a_filtered_stream_passes_over_what_does_not_match(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=1)
    topics.send(topic, 0, [b"x"] * 3, properties="TAGS\x01no")
    query = Query(options(topic, startingOffsets="earliest", tags="yes"))
    assert query.batch() == []
    assert query.batch() is None
    topics.send(topic, 0, [b"x"], properties="TAGS\x01yes")
    assert query.batch() == [(0, 3)]


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


@pytest.mark.parametrize(
    "limits",
    [
        {"maxBytesPerTrigger": "12k"},
        {"maxOffsetsPerTrigger": "7"},
        {"minOffsetsPerTrigger": "30", "maxTriggerDelay": "1h"},
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "30k"},
    ],
)
def test_available_now_reads_everything_within_the_limits_and_once_without(
    topics: Topics, options: MakeOptions, limits: dict[str, str]
) -> None:
    """For ``once`` Spark asks for all, else for the reader's own limit."""
    topic = topics.create(queues=1)
    topics.send(topic, 0, [bytes(1000)] * 40)
    given = options(topic, startingOffsets="earliest", **limits)
    once, now = Query(given), Query(given)
    now.reader.prepareForTriggerAvailableNow()
    batches = list(iter(now.batch, None))
    assert [place for batch in batches for place in batch] == everything(40)
    assert len(batches) > 1 or "maxTriggerDelay" in limits
    assert once.batch(ALL) == everything(40)
    topics.send(topic, 0, [bytes(1000)])
    assert once.batch(ALL) == [(0, 40)], "though it is less than the fewest messages of a batch"
