"""Reading from slaves: a slave that is behind is waited for, and only the master proves that something is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Timer

import pytest
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from tests.spark.conftest import MakeOptions
from tests.spark.source.reading import everything, read
from tests.spark.source.test_stream_reader import Query

from cometmq.spark.errors import DataLossError, UnreachableError
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import SourceOptions, parse_options
from cometmq.testing import SyncCluster


@pytest.fixture(scope="module")
def other() -> Iterator[Topics]:
    """A broker of another cluster, which tests register as a slave: it has what they send to it."""
    with SyncCluster() as cluster:
        yield topics_of(cluster)


def topics_of(cluster: SyncCluster) -> Topics:
    found = Topics(cluster.namesrv_address, cluster.run(lambda inner: inner.broker(0).address))
    found.broker_name = "broker-0"
    return found


def source_of(cluster: SyncCluster, **more: str) -> SourceOptions:
    given = {"namesrvAddr": cluster.namesrv_address, "topic": "orders", "startingOffsets": "earliest"}
    return parse_options({**given, "readFrom": "slave", "pollTimeoutMs": "2000", **more})


def bodies(count: int) -> list[bytes]:
    return [b"%09d" % number for number in range(count)]


def test_a_slave_that_is_behind_is_waited_for(topics: Topics, other: Topics, options: MakeOptions) -> None:
    """Neither loss nor doubled rows: 250 of 250, in a batch and in a stream."""
    topic = topics.create(queues=1)
    topics.send(topic, 0, bodies(250))
    other.create(queues=1, name=topic)
    other.send(topic, 0, bodies(150))
    given = options(topic, readFrom="slave", startingOffsets="earliest", pollTimeoutMs="60000")
    with topics.registered("broker-a", other.broker, topic, broker_id=1):
        catching_up = Timer(0.5, other.send, (topic, 0, bodies(100)))
        catching_up.start()
        assert read(given) == everything(250)
        catching_up.join()
        query = Query(given)
        assert query.batch() == everything(250)
        assert query.batch() is None


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_slave_that_stays_behind_is_named_when_the_time_is_over(
    topics: Topics, other: Topics, options: MakeOptions, loss: str
) -> None:
    topic = topics.create(queues=1)
    topics.send(topic, 0, bodies(250))
    other.create(queues=1, name=topic)
    other.send(topic, 0, bodies(150))
    given = options(topic, readFrom="slave", pollTimeoutMs="700", failOnDataLoss=loss)
    said = r"no data arrived from offset 150 of .* for 700 ms: the slave is behind its master .*readFrom=master"
    with topics.registered("broker-a", other.broker, topic, broker_id=1), pytest.raises(UnreachableError, match=said):
        read(given)


def test_what_a_slave_never_had_is_read_from_the_master(topics: Topics, other: Topics, options: MakeOptions) -> None:
    """A slave that was set up later has not the oldest messages, or does not know the topic yet."""
    topic = topics.create(queues=1)
    topics.send(topic, 0, bodies(250))
    with topics.registered("broker-a", other.broker, topic, broker_id=1):
        assert read(options(topic, readFrom="slave")) == everything(250)


def test_groups_and_bounds_are_asked_of_the_master(topics: Topics, other: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=1)
    topics.send(topic, 0, bodies(20))
    other.create(queues=1, name=topic)
    given = options(topic, readFrom="slave")
    with topics.registered("broker-a", other.broker, topic, broker_id=1):
        cluster = Cluster(given)
        queues = cluster.queues()
        assert cluster.address_of(queues[0]) == other.broker
        assert [held.end for held in cluster.bounds(queues).values()] == [20]
        cluster.commit_offsets(f"group-of-{topic}", {queues[0]: 7})
    assert Cluster(options(topic)).committed_offsets(queues, f"group-of-{topic}") == {queues[0]: 7}


def test_a_slave_without_master_proves_no_loss(other: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """A slave that is behind, when its master dies: the stream keeps its offsets, and goes on with the master."""
    with SyncCluster() as cluster:
        cluster.create_topic("orders", 1)
        topics = topics_of(cluster)
        topics.send("orders", 0, bodies(250))
        other.create(queues=1, name="orders")
        other.send("orders", 0, bodies(150))
        with topics.registered("broker-0", other.broker, "orders", broker_id=1):
            queries = [Query(source_of(cluster, readFrom="master", failOnDataLoss=loss)) for loss in ("true", "false")]
            for query in queries:
                assert query.batch() == everything(250)
            cluster.kill_broker(0)
            for query in queries:
                query.restart()
                assert query.batch() is None
                assert "no master of orders@broker-0:0 is registered, and its slave lacks messages" in caplog.text
                caplog.clear()
                query.reader.prepareForTriggerAvailableNow()
                with pytest.raises(UnreachableError, match=r"no master of orders.* is registered"):
                    query.plan()
            with pytest.raises(UnreachableError, match="only the master knows whether the messages are lost"):
                read(source_of(cluster, endingOffsets='{"orders": {"broker-0": {"0": 250}}}'))
            cluster.start_broker(0)
            topics.send("orders", 0, bodies(5))
            for query in queries:
                query.restart()
                assert query.batch() == [(0, offset) for offset in range(250, 255)]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_slave_that_is_started_before_its_master_does_not_make_all_begin_anew(loss: str) -> None:
    """The nameserver then has the broker, but not its topics, which slaves do not register."""
    with SyncCluster(slaves=1) as cluster:
        cluster.create_topic("orders", 1)
        topics = topics_of(cluster)
        topics.send("orders", 0, bodies(50))
        query = Query(source_of(cluster, readFrom="master", failOnDataLoss=loss))
        assert query.batch() == everything(50)
        cluster.kill_slave()
        cluster.kill_broker(0)
        cluster.start_slave()
        query.restart()
        assert query.batch() is None
        assert query.batch() is None
        cluster.start_broker(0)
        topics.send("orders", 0, bodies(5))
        assert query.batch() == [(0, offset) for offset in range(50, 55)]


def test_a_master_that_lost_its_end_is_data_loss(topics: Topics, options: MakeOptions) -> None:
    """As one that a slave without the last messages replaced: the messages in their place are others."""
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    assert query.batch() == everything(10)
    assert query.offset is not None
    (mark,) = query.offset["marks"][topic]["broker-a"].values()
    mark[1] += 1  # the place of the message that was read, and that another one has now
    topics.send(topic, 0, [b"x"] * 2)
    with pytest.raises(DataLossError, match="contains other messages before offset 10 than were read"):
        query.plan()
    tolerant = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    tolerant.offset = json.loads(json.dumps(query.offset))
    assert tolerant.batch() == [(0, 10), (0, 11)]
