"""A topic that is deleted and made anew is another topic: streams, repeated batches, tasks and kept offsets see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import MakeOptions
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.source.reading import PLACE, everything, rows
from tests.spark.source.test_stream_reader import Query

from cometmq.message.queues import Queue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import Header
from cometmq.spark.errors import DataLossError
from cometmq.spark.records.decode import Records
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.fetch import Fetcher
from cometmq.spark.source.offsets import kept_starting_offsets
from cometmq.spark.source.reader import RangePartition, RocketMQReader
from cometmq.spark.source.stream_reader import LIFE_CHECK_SECONDS, RocketMQStreamReader
from cometmq.testing import VirtualClock


@pytest.mark.parametrize("sent", [5, 10, 25])
def test_a_topic_made_anew_is_data_loss_or_read_from_its_beginning(
    topics: Topics, options: MakeOptions, sent: int
) -> None:
    """Whether it has fewer messages, as many, or more than were read."""
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    assert query.batch() == everything(10)
    topics.make_anew(topic, sent)
    query.restart()
    with pytest.raises(DataLossError, match=r"@broker-a:0 has been recreated since it was read .*failOnDataLoss=false"):
        query.plan()
    tolerant = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    tolerant.offset = query.offset
    assert tolerant.batch() == everything(sent)
    assert tolerant.batch() is None
    topics.send(topic, 0, [b"x"])
    assert tolerant.batch() == [(0, sent)]


def test_a_topic_made_anew_while_nothing_was_read_yet_is_whole(topics: Topics, options: MakeOptions) -> None:
    """The mark of where a stream begins counts too."""
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, failOnDataLoss="false"))
    assert query.batch() == []
    topics.make_anew(topic, 25)
    assert query.batch() == everything(25)


def test_a_running_query_sees_a_topic_made_anew_in_the_middle_of_its_batches(
    topics: Topics, options: MakeOptions
) -> None:
    topic = topics.fill(20, queues=1)
    query = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    assert query.batch(ReadMaxRows(5)) == everything(5)
    topics.make_anew(topic, 20)
    assert query.batch(ReadMaxRows(12)) == everything(12)


def test_an_idle_query_sees_a_topic_made_anew_with_as_many_messages(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    given = options(topic, startingOffsets="earliest", failOnDataLoss="false")
    clock = VirtualClock()
    query = Query(given)
    query.reader = RocketMQStreamReader(given, PLACE, clock=clock)
    assert query.batch() == everything(10)
    topics.make_anew(topic, 10)
    clock.advance(LIFE_CHECK_SECONDS)
    assert query.batch() == everything(10)
    assert query.batch() is None


def test_only_the_queues_of_the_topic_made_anew_begin_again(topics: Topics, options: MakeOptions) -> None:
    topic, other = topics.fill(20, queues=2), topics.fill(6, queues=1)
    query = Query(options(f"{topic},{other}", startingOffsets="earliest", failOnDataLoss="false"))
    assert len(query.batch() or []) == 26
    topics.make_anew(topic, 12, 0)
    topics.send(other, 0, [b"x"])
    assert query.batch() == [*everything(12), (0, 6)]
    topics.send(topic, 1, [b"x"] * 11)
    assert query.batch() == [(1, offset) for offset in range(11)]


def test_a_planned_batch_of_a_topic_made_anew_is_not_read_of_the_new_one(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    planned = query.plan()
    assert planned is not None
    topics.make_anew(topic, 25)
    query.restart()
    with pytest.raises(DataLossError, match="was recreated, or lost its end, before a planned batch was read"):
        query.run(planned)
    tolerant = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    assert tolerant.run(planned) == []
    assert tolerant.batch() == everything(25)


def test_a_task_does_not_mix_two_lives(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    for reader, planned in (
        ((batch := RocketMQReader(options(topic), PLACE)), batch.partitions()),
        ((query := Query(options(topic, startingOffsets="earliest"))).reader, None),
    ):
        if planned is None:
            end = query.plan()
            assert end is not None
            planned = query.reader.partitions({}, end)
        topics.make_anew(topic, 10)
        with pytest.raises(DataLossError, match="was recreated while it was being read"):
            rows(reader, planned)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_task_does_not_take_a_shorter_life_for_the_begin_of_its_range(
    topics: Topics, options: MakeOptions, partitions: int
) -> None:
    """Nor does the first of two tasks, whose messages are all there: they would come again with the next batch."""
    topic = topics.fill(10, queues=1)
    given = options(topic, startingOffsets="earliest", failOnDataLoss="false", minPartitions=str(partitions))
    query = Query(given)
    end = query.plan()
    assert end is not None
    planned = query.reader.partitions({}, end)
    assert len(planned) == partitions
    topics.make_anew(topic, 5)
    with pytest.raises(DataLossError, match="was recreated while it was being read"):
        rows(query.reader, planned[:1])


def test_a_task_keeps_what_it_read_of_a_topic_that_was_deleted_meanwhile(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    end = query.plan()
    assert end is not None
    (planned,) = query.reader.partitions({}, end)
    assert isinstance(planned, RangePartition)
    chunks = Fetcher(query.options).fetch(planned.ranges, planned.marks)
    assert len(Records(next(chunks).data)) == 10
    topics.delete(topic)
    assert list(chunks) == []


@pytest.mark.parametrize("others", [0, 3])
def test_a_planned_batch_of_a_topic_that_was_deleted_is_data_loss(
    topics: Topics, options: MakeOptions, others: int
) -> None:
    """A query that was killed in that batch would otherwise never get past it."""
    topic = topics.fill(10, queues=1)
    read = f"{topic},{topics.fill(others, queues=1)}" if others else topic
    query = Query(options(read, startingOffsets="earliest"))
    planned = query.plan()
    assert planned is not None
    topics.delete(topic)
    query.restart()
    with pytest.raises(DataLossError, match="1 queues no longer exist on their brokers"):
        query.run(planned)
    tolerant = Query(options(read, startingOffsets="earliest", failOnDataLoss="false"))
    assert tolerant.run(planned) == everything(others)
    assert tolerant.batch() == []
    assert tolerant.batch() is None


def test_batches_of_other_topics_do_not_hide_a_topic_made_anew(topics: Topics, options: MakeOptions) -> None:
    """With as many messages as before, so that only a look at its mark tells them apart."""
    quiet, busy = topics.fill(10, queues=1), topics.fill(1, queues=1)
    given = options(f"{quiet},{busy}", startingOffsets="earliest", failOnDataLoss="false")
    clock = VirtualClock()
    query = Query(given)
    query.reader = RocketMQStreamReader(given, PLACE, clock=clock)
    assert len(query.batch() or []) == 11
    topics.send(busy, 0, [b"x"])
    assert query.batch() == [(0, 1)]
    topics.make_anew(quiet, 10)
    topics.send(busy, 0, [b"x"])
    assert query.batch() == [(0, 2)]
    clock.advance(LIFE_CHECK_SECONDS)
    assert query.batch() == everything(10)


def test_a_batch_pulls_messages_of_those_queues_alone_that_it_reads(
    topics: Topics, options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at its mark, and for the new one: a batch does not take longer because other queues are there."""
    topic = topics.fill(80, queues=40)
    query = Query(options(topic, startingOffsets="earliest"))
    for _ in range(2):  # the second is looked at whole, as after every start
        query.batch()
        topics.send(topic, 7, [b"x"])
    looked: list[int] = []
    ask = Cluster.ask_broker

    def counted(self: Cluster, queue: Queue, requests: Sequence[tuple[int, Header]], *more: float) -> Any:
        looked.extend(1 for code, _ in requests if code == RequestCode.PULL_MESSAGE)
        return ask(self, queue, requests, *more)

    monkeypatch.setattr(Cluster, "ask_broker", counted)
    assert query.plan() is not None
    assert len(looked) == 2


def test_a_checkpoint_without_marks_goes_on_and_has_them_from_then_on(topics: Topics, options: MakeOptions) -> None:
    topic = topics.fill(10, queues=1)
    query = Query(options(topic, startingOffsets="earliest"))
    assert query.batch() == everything(10)
    assert query.offset is not None
    del query.offset["marks"]
    query.restart()
    assert query.batch() is None, "nothing new, though the mark is: an empty batch would say nothing"
    topics.send(topic, 0, [b"x"])
    assert query.batch() == [(0, 10)]
    topics.make_anew(topic, 25)
    with pytest.raises(DataLossError, match="has been recreated"):
        query.plan()


def test_kept_starting_offsets_are_those_of_the_topic_that_they_were_kept_of(topics: Topics, tmp_path: Path) -> None:
    topic, kept_in = topics.fill(10, queues=1), tmp_path / "begin.json"
    source = {"namesrvAddr": topics.namesrv, "topic": topic, "startingOffsets": "latest"}
    assert json.loads(kept_starting_offsets(kept_in, source)) == {topic: {"broker-a": {"0": 10}}}
    topics.make_anew(topic, 25)
    with pytest.raises(DataLossError, match="has been recreated"):
        kept_starting_offsets(kept_in, source)
    tolerant = source | {"failOnDataLoss": "false"}
    for _ in range(2):
        assert json.loads(kept_starting_offsets(kept_in, tolerant)) == {topic: {"broker-a": {"0": 0}}}
    assert json.loads(kept_starting_offsets(kept_in, source)) == {topic: {"broker-a": {"0": 0}}}
