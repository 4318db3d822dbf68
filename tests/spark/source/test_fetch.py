"""Planning and pulling against a real broker, without Spark."""

from __future__ import annotations

import random
import time

import pytest
from tests.spark.conftest import MakeOptions
from tests.spark.topics import Topics

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.client.blocking.offsets import Bounds  # noqa: E402
from cometmq.message.record import iter_records  # noqa: E402
from cometmq.spark.errors import DataLossError, SparkSourceError, UnreachableError  # noqa: E402
from cometmq.spark.records.queues import OffsetRange, Queue  # noqa: E402
from cometmq.spark.source import fetch as fetch_module  # noqa: E402
from cometmq.spark.source.cluster import Cluster  # noqa: E402
from cometmq.spark.source.fetch import Fetcher  # noqa: E402
from cometmq.spark.source.options import SourceOptions, parse_options  # noqa: E402


def offsets(options: SourceOptions, *ranges: OffsetRange) -> list[tuple[Queue, int]]:
    return [
        (chunk.queue, record.queue_offset)
        for chunk in Fetcher(options).fetch(ranges)
        for record in iter_records(chunk.data, check_crc=True)
    ]


def test_bounds_and_queues(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(1000, queues=3)
    cluster = Cluster(options(topic))
    queues = cluster.queues()
    assert queues == [Queue(topic, "broker-a", queue_id) for queue_id in range(3)]
    assert list(cluster.bounds(queues).values()) == [Bounds(0, 334), Bounds(0, 333), Bounds(0, 333)]


def test_ranges_come_whole_and_in_order(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(9000, queues=2)
    first, second = (Queue(topic, "broker-a", queue_id) for queue_id in range(2))
    ranges = [OffsetRange(first, 17, 4501 - 1), OffsetRange(second, 0, 3), OffsetRange(second, 1000, 4000)]
    expected = [(part.queue, offset) for part in ranges for offset in range(part.first, part.end)]
    assert offsets(options(topic), *ranges) == expected


def test_large_messages_stay_in_bounds(topics: Topics, options: MakeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any room ahead the order and the number of messages stay the same."""
    monkeypatch.setattr(fetch_module, "_AHEAD_BYTES", 1)
    topic = topics.fill(300, queues=1, size=3000)
    queue = Queue(topic, "broker-a", 0)
    assert offsets(options(topic, pullBatchSize="7"), OffsetRange(queue, 0, 300)) == [
        (queue, offset) for offset in range(300)
    ]


def test_answers_in_the_order_of_offsets_are_received_into_one_buffer(topics: Topics, options: MakeOptions) -> None:
    """Segments are as large as answers, so none is finished by a second answer that is copied meanwhile."""
    topic = topics.fill(20_000, queues=1, size=1500)
    chunks = Fetcher(options(topic)).fetch([OffsetRange(Queue(topic, "broker-a", 0), 0, 20_000)])
    buffers = [id(chunk.data.obj) for chunk in chunks]
    assert len(buffers) > 20
    assert len(set(buffers[2:])) <= 3, "the buffer grows with the first answers"


def test_sizes_that_change_from_message_to_message_come_whole_and_in_order(
    topics: Topics, options: MakeOptions
) -> None:
    topic = topics.create(queues=1)
    queue = Queue(topic, "broker-a", 0)
    noise = random.Random(5)
    sizes = [*[10] * 3000, *[100_000] * 60, *[10] * 3000, *(noise.choice([1, 500, 20_000]) for _ in range(1500))]
    bodies = [noise.randbytes(size) for size in sizes]
    for first in range(0, len(bodies), 30):
        topics.send(topic, 0, bodies[first : first + 30])
    chunks = Fetcher(options(topic)).fetch([OffsetRange(queue, 0, len(bodies))])
    assert [record.body for chunk in chunks for record in iter_records(bytes(chunk.data))] == bodies


def test_offsets_beyond_the_end_are_data_loss(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(100, queues=1)
    queue = Queue(topic, "broker-a", 0)
    with pytest.raises(DataLossError, match=r"\[100, 150\).*failOnDataLoss=false"):
        offsets(options(topic), OffsetRange(queue, 50, 150))
    tolerant = options(topic, failOnDataLoss="false")
    assert len(offsets(tolerant, OffsetRange(queue, 50, 150))) == 50
    fetcher = Fetcher(tolerant)
    assert len(list(fetcher.fetch([OffsetRange(queue, 50, 9_000)]))) == 1
    assert fetcher.lost == [OffsetRange(queue, 100, 9_000)], "what is gone is one stretch, however long"


def test_a_deleted_topic_is_data_loss(topics: Topics, options: MakeOptions) -> None:
    from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
    from cometmq.remoting.blocking import BlockingConnection
    from cometmq.remoting.codes import RequestCode

    topic = topics.fill(100, queues=1)
    given = options(topic)
    fetcher = Fetcher(given)
    queue = Queue(topic, "broker-a", 0)
    fetcher._cluster.queues()
    with BlockingConnection(topics.broker, 60) as connection:
        assert connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic)).code == 0
    with pytest.raises(DataLossError, match="deleted"):
        list(fetcher.fetch([OffsetRange(queue, 0, 100)]))


def test_offsets_by_time_are_exact(topics: Topics, options: MakeOptions) -> None:
    topic = topics.create(queues=1)
    for _ in range(30):  # several messages share a millisecond, and milliseconds differ
        topics.send(topic, 0, [b"x"] * 3)
    queue = Queue(topic, "broker-a", 0)
    cluster = Cluster(options(topic))
    bounds = cluster.bounds([queue])
    chunks = Fetcher(options(topic)).fetch([OffsetRange(queue, 0, 90)])
    stored = [record.store_timestamp for chunk in chunks for record in iter_records(chunk.data)]
    for moment in sorted({stored[0] - 1000, *stored, *(time_ms + 1 for time_ms in stored), stored[-1] + 60_000, 0}):
        expected = next((offset for offset, time_ms in enumerate(stored) if time_ms >= moment), 90)
        assert cluster.offsets_at(bounds, moment) == {queue: expected}, moment - stored[0]


def test_a_nameserver_that_is_not_there() -> None:
    options = parse_options({"namesrvAddr": "127.0.0.1:9", "topic": "T", "pollTimeoutMs": "500"})
    with pytest.raises(UnreachableError, match=r"no nameserver responds: .*127\.0\.0\.1:9"):
        Cluster(options).queues()


def test_a_broker_that_went_away_is_waited_for_and_then_named(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    fetcher = Fetcher(options(topic, pollTimeoutMs="700"))
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="broker-gone"):
        list(fetcher.fetch([OffsetRange(Queue(topic, "broker-gone", 0), 0, 10)]))
    assert time.monotonic() - began >= 0.7


def test_an_answer_that_is_an_error_is_told(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    with pytest.raises(SparkSourceError, match="failed with code"):
        offsets(options(topic), OffsetRange(Queue(topic, "broker-a", 99), 0, 10))
