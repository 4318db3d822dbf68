"""Tasks of the sink that are repeated, killed, overtaken or changed: every row once, or the task says why not."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.interop.systems import System, deploy
from tests.spark.sinking import rows_of, sink, stored
from tests.spark.topics import Topics

from cometmq.spark.errors import OptionError, SinkError
from cometmq.spark.sink.options import Guarantee, check_sink_schema, parse_sink_options
from cometmq.testing import Cluster

_jobs = itertools.count(1)
EXACTLY: dict[str, Any] = {"deliveryGuarantee": "exactly-once"}
EFFECTIVELY: dict[str, Any] = {"deliveryGuarantee": "effectively-once"}


class DiedError(Exception):
    """The task was killed."""


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Every third row has one of two keys, the others go round the queues."""
    return [
        {"body": b"%06d" % number, "shardingKey": f"k{number % 2}" if number % 3 == 0 else None}
        for number in range(first, first + count)
    ]


def cut(given: list[dict[str, Any]], size: int, dies_at: int | None = None) -> Iterator[Any]:
    """Batches of ``size`` rows; instead of the one with row ``dies_at`` the task dies."""
    for at in range(0, len(given), size):
        if dies_at is not None and at + size > dies_at:
            raise DiedError
        yield rows_of(given[at : at + size])


def numbers(topics: Topics, topic: str, queues: int) -> list[list[int]]:
    return [[int(record.body) for record in records] for records in stored(topics, topic, queues)]


def job() -> str:
    return f"test.{next(_jobs)}"


@given(
    guarantee=st.sampled_from([EXACTLY, EFFECTIVELY]),
    count=st.integers(1, 2500),
    sizes=st.lists(st.integers(1, 900), min_size=4, max_size=4),
    deaths=st.lists(st.floats(0, 1), max_size=3),
    most=st.sampled_from([500, 20_000, 1_000_000]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_often_a_task_dies_each_row_is_stored_once_in_order(
    topics: Topics, guarantee: dict[str, Any], count: int, sizes: list[int], deaths: list[float], most: int
) -> None:
    """Also when Spark cuts the rows differently each time."""
    topic, name = topics.create(queues=3), job()
    given_rows = rows(count)
    for death, size in zip(deaths, sizes[1:], strict=False):
        with pytest.raises(DiedError):
            sink(topics, topic, cut(given_rows, size, int(death * count)), job=name, maxBatchBytes=most, **guarantee)
    done = sink(topics, topic, cut(given_rows, sizes[0]), job=name, maxBatchBytes=most, **guarantee)
    found = numbers(topics, topic, 3)
    assert sorted(itertools.chain(*found)) == list(range(count))
    assert all(queue == sorted(queue) for queue in found)
    assert done.messages + done.already_stored == count


@pytest.mark.parametrize("guarantee", [EXACTLY, EFFECTIVELY])
def test_a_task_that_is_repeated_as_a_whole_stores_nothing_more(topics: Topics, guarantee: dict[str, Any]) -> None:
    topic, name = topics.create(queues=3), job()
    assert sink(topics, topic, cut(rows(1000), 300), job=name, **guarantee).already_stored == 0
    done = sink(topics, topic, cut(rows(1000), 700), job=name, **guarantee)
    assert (done.messages, done.already_stored, done.requests) == (0, 1000, 0)
    next_batch = sink(topics, topic, cut(rows(10, 1000), 10), job=name, batch=1, **guarantee)
    assert next_batch.messages == 10
    assert sorted(itertools.chain(*numbers(topics, topic, 3))) == list(range(1010))


def test_partitions_and_jobs_do_not_meet(topics: Topics) -> None:
    topic, name = topics.create(queues=2), job()
    for partition in (0, 1):
        sink(topics, topic, cut(rows(5, 5 * partition), 5), partition, job=name, **EXACTLY)
    sink(topics, topic, cut(rows(5, 10), 5), job=job(), **EXACTLY)
    assert sorted(itertools.chain(*numbers(topics, topic, 2))) == list(range(15))


def test_an_attempt_that_was_overtaken_is_fenced(topics: Topics) -> None:
    topic, name = topics.create(queues=1), job()

    def slow() -> Iterator[Any]:
        yield rows_of(rows(10))
        sink(topics, topic, cut(rows(30), 30), job=name, **EXACTLY)  # a speculative copy runs to its end meanwhile
        yield rows_of(rows(20, 10))

    with pytest.raises(SinkError, match=r"code 20001.*epoch 1 has ended .another attempt of this task has taken over"):
        sink(topics, topic, slow(), job=name, **EXACTLY)
    assert numbers(topics, topic, 1) == [list(range(30))]


def test_a_batch_that_is_over_cannot_be_sent_again(topics: Topics) -> None:
    topic, name = topics.create(queues=1), job()
    sink(topics, topic, cut(rows(3), 3), job=name, batch=7, **EXACTLY)
    with pytest.raises(SinkError, match=r"has begun batch 7; batch 6 has ended .*new checkpoint"):
        sink(topics, topic, cut(rows(3), 3), job=name, batch=6, **EXACTLY)


@pytest.mark.parametrize("stored_rows", [10, 20, 30])
def test_other_rows_in_a_repeated_task_are_refused(topics: Topics, stored_rows: int) -> None:
    topic, name = topics.create(queues=1), job()
    with pytest.raises(DiedError):
        sink(topics, topic, cut(rows(40), 10, stored_rows), job=name, **EXACTLY)
    before = numbers(topics, topic, 1)
    shuffled = rows(40)
    shuffled[3], shuffled[7] = shuffled[7], shuffled[3]
    with pytest.raises(SinkError, match=rf"first {stored_rows} rows for .* differ .*same rows in the same order"):
        sink(topics, topic, cut(shuffled, 40), job=name, **EXACTLY)
    assert numbers(topics, topic, 1) == before


def test_fewer_rows_in_a_repeated_task_are_refused(topics: Topics) -> None:
    topic, name = topics.create(queues=1), job()
    sink(topics, topic, cut(rows(40), 10), job=name, **EXACTLY)
    with pytest.raises(SinkError, match=r"earlier attempt stored 40 rows in .*, but this one has 30"):
        sink(topics, topic, cut(rows(30), 10), job=name, **EXACTLY)


def test_queues_that_come_in_between_change_nothing(topics: Topics) -> None:
    """A repeated task deals its rows to the queues there were; the next batch uses all."""
    topic, name = topics.create(queues=2), job()
    with pytest.raises(DiedError):
        sink(topics, topic, cut(rows(3000), 1000, 2000), job=name, **EXACTLY)
    topics.create(queues=5, name=topic)
    sink(topics, topic, cut(rows(3000), 1000), job=name, **EXACTLY)
    found = numbers(topics, topic, 5)
    assert sorted(itertools.chain(*found)) == list(range(3000))
    assert found[2:] == [[], [], []]
    sink(topics, topic, cut(rows(3000), 1000), job=name, batch=1, **EXACTLY)
    assert all(numbers(topics, topic, 5))


async def test_rows_that_an_earlier_attempt_dealt_to_a_broker_wait_for_it() -> None:
    """Two brokers, of which one is gone when the task is repeated: its rows do not go to the other."""
    async with Cluster(brokers=2) as cluster:
        await cluster.create_topic("T", queues=1)
        topics = Topics(cluster.namesrv_address, cluster.broker(0).address)
        await asyncio.to_thread(die_on, topics)
        await cluster.stop_broker(1)
        with pytest.raises(SinkError, match=r"sent rows of topic T to broker .*, which is not registered now"):
            await asyncio.to_thread(sink, topics, "T", [rows_of(KEYLESS)], **EXACTLY)
        await cluster.start_broker(1)
        await asyncio.to_thread(sink, topics, "T", [rows_of(KEYLESS)], **EXACTLY)
        found = [cluster.broker(number).store.queue("T", 0).max_offset() for number in (0, 1)]
        assert (sum(found), min(found) > 0) == (len(KEYLESS), True)


KEYLESS: list[dict[str, Any]] = [{"body": b"%06d" % number} for number in range(3000)]


def die_on(topics: Topics) -> None:
    with pytest.raises(DiedError):
        sink(topics, "T", cut(KEYLESS, 1000, 2500), **EXACTLY)


@pytest.mark.crash
def test_a_task_that_fails_first_waits_for_what_it_has_sent(tmp_path: Path) -> None:
    """The next attempt asks at once what is stored, and would store again what its broker had not come to yet."""
    deployment = deploy(System.COMETMQ, tmp_path)
    goes_on = threading.Event()

    def go_on() -> None:
        goes_on.set()
        os.kill(deployment.broker.pid, signal.SIGCONT)

    timer = threading.Timer(1.0, go_on)

    def dying() -> Iterator[Any]:
        os.kill(deployment.broker.pid, signal.SIGSTOP)
        timer.start()
        yield rows_of(rows(1000))
        raise DiedError

    try:
        topics = Topics(deployment.address, deployment.broker.address)
        topic = topics.create(queues=3)
        with pytest.raises(DiedError):
            sink(topics, topic, dying())
        assert goes_on.is_set()
        assert sorted(itertools.chain(*numbers(topics, topic, 3))) == list(range(1000))
    finally:
        timer.join()
        deployment.close()


@pytest.mark.crash
@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once", "exactly-once"])
def test_a_broker_that_is_killed_again_and_again(tmp_path: Path, guarantee: str) -> None:
    """The task waits for it; with exactly-once nothing is doubled, whatever was under way."""
    deployment = deploy(System.COMETMQ, tmp_path)
    try:
        topics = Topics(deployment.address, deployment.broker.address)
        topic = topics.create(queues=3)
        given_rows = rows(6000)

        def killing() -> Iterator[Any]:
            for at in range(0, 6000, 500):
                yield rows_of(given_rows[at : at + 500])
                if at % 2000 == 0:
                    deployment.broker.kill()
                    deployment.start_again(System.COMETMQ)

        done = sink(topics, topic, killing(), job=job(), deliveryGuarantee=guarantee, maxBatchBytes=5000)
        found = list(itertools.chain(*numbers(topics, topic, 3)))
        assert done.messages == 6000
        assert sorted(set(found)) == list(range(6000))
        assert guarantee == "at-least-once" or len(found) == 6000
    finally:
        deployment.close()


def test_a_broker_without_an_index_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effectively-once would store repeated rows twice there, and nobody would know."""
    monkeypatch.setattr("cometmq.spark.sink.effectively_once.PROOF_SECONDS", 1.0)
    deployment = deploy(System.COMETMQ, tmp_path, messageIndexEnable="false")
    try:
        topics = Topics(deployment.address, deployment.broker.address)
        topic = topics.create(queues=1)
        with pytest.raises(SinkError, match=r"does not find messages by their ids.* messageIndexEnable=true"):
            sink(topics, topic, cut(rows(3), 3), **EFFECTIVELY)
    finally:
        deployment.close()


def test_what_cannot_go_in_batches_is_refused_when_planned() -> None:
    with pytest.raises(OptionError, match=r"RocketMQ allows no compressed messages .leave out compressionType"):
        parse_sink_options({"namesrvAddr": "a:1", "compressionType": "zlib"} | EXACTLY)
    fields = [("body", "string"), ("deliverAt", "timestamp"), ("delayLevel", "int")]
    with pytest.raises(OptionError, match="leave out delayLevel, deliverAt, or use at-least-once"):
        check_sink_schema(fields, topic_given=True, guarantee=Guarantee.EXACTLY_ONCE)
    with pytest.raises(OptionError, match="leave out priority, or use at-least-once"):
        check_sink_schema(
            [("body", "string"), ("priority", "int")], topic_given=True, guarantee=Guarantee.EFFECTIVELY_ONCE
        )
    with pytest.raises(OptionError, match="producerId must be 1 to 128"):
        parse_sink_options({"namesrvAddr": "a:1", "producerId": "a b"})


@pytest.mark.parametrize("guarantee", ["exactly-once", "effectively-once"])
@pytest.mark.parametrize("others", [0, 30, 90])
def test_a_repeated_task_writes_all_rows_to_a_topic_that_was_made_anew(
    topics: Topics, guarantee: str, others: int
) -> None:
    """Those that an earlier attempt stored are gone with the topic of before, though log and index still have them."""
    topic = topics.create(queues=1)
    batch = rows_of([{"body": b"%d" % number} for number in range(60)])
    for _ in range(2):
        sink(topics, topic, [batch], job=topic, deliveryGuarantee=guarantee)
    assert len(stored(topics, topic, 1)[0]) == 60
    topics.make_anew(topic, others)
    for _ in range(2):
        sink(topics, topic, [batch], job=topic, deliveryGuarantee=guarantee)
    assert [record.body for record in stored(topics, topic, 1)[0]][others:] == [b"%d" % number for number in range(60)]
