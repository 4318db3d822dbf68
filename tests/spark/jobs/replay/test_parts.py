"""Parts of the replay job, without Spark: ledger, properties, and a sender whose connection breaks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.waiting import wait_for
from tests.interop.systems import System
from tests.spark.conftest import SYSTEM
from tests.spark.sinking import stored
from tests.spark.topics import Topics

pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install cometmq[spark])")

import pyarrow as pa

from cometmq.archive.commits import QueueTotals
from cometmq.client.pace import CATCH_UP_SECONDS, Pace
from cometmq.message.properties import decode_properties
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.command import RemotingCommand
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import ArchiveError, OptionError, SinkError
from cometmq.spark.jobs.options import Selection
from cometmq.spark.jobs.replay import ledger as ledgers
from cometmq.spark.jobs.replay.job import step_of
from cometmq.spark.jobs.replay.ledger import (
    OpenedLedger,
    Plan,
    Range,
    ReplayJob,
    ReplayLedger,
    StepDone,
    TargetEnd,
    ranges_left,
    same_queues,
    shares_of,
    write_mapping,
)
from cometmq.spark.jobs.replay.sender import (
    ACTING,
    REPLAY_ORIGIN,
    Origin,
    QueueSender,
    ReplayTask,
    Resent,
    TaskSender,
    messages_of,
    origin_of,
    origin_text,
    properties_with,
    send_batches,
)
from cometmq.spark.records.queues import Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options
from cometmq.storage import open_storage
from cometmq.testing import SyncCluster

PATIENCE_S = 60.0
JOB = ReplayJob("/lake", "t", "127.0.0.1:9876", "copy", False, False, Selection())

names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)
values = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1, max_size=8)
texts = st.dictionaries(names | st.sampled_from(sorted(ACTING | {REPLAY_ORIGIN})), values, max_size=6)


@given(texts, st.booleans())
def test_properties_keep_all_but_what_would_act_again(properties: dict[str, str], closed: bool) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()) + ("\x02" if closed else "")
    found = decode_properties(properties_with(text, "r/1/2/3/b"))
    assert found.pop(REPLAY_ORIGIN) == "r/1/2/3/b"
    properties.pop(REPLAY_ORIGIN, None)
    assert found == {(f"REPLAYED_{name}" if name in ACTING else name): value for name, value in properties.items()}


def test_origins_are_read_back_and_those_of_other_replays_are_not() -> None:
    origin = Origin("broker/a", 3, 77)
    assert origin_of("abc", origin_text("abc", origin, 1)) == origin
    assert origin_of("abd", origin_text("abc", origin, 1)) is None
    assert [origin_of("abc", text) for text in (None, "abc/", "abc/x/1/1/b", "abc/1/1")] == [None] * 4


ends = st.lists(st.integers(0, 200), min_size=2, max_size=2)


@given(ends, ends, st.integers(1, 40), st.integers(0, 5))
def test_steps_take_every_offset_once_and_in_order(reached: list[int], more: list[int], most: int, done: int) -> None:
    def totals(reached: list[int]) -> list[QueueTotals]:
        mine = [QueueTotals("t", "b", queue_id, 0, end, end) for queue_id, end in enumerate(reached)]
        return [*mine, QueueTotals("other", "b", 0, 0, 9, 9)]

    archived = totals(reached)
    steps = list(ranges_left(archived, "t", [], most))
    finished = [StepDone(number, part, 0, 0, 0) for number, part in enumerate(steps[:done])]
    reached = [before + growth for before, growth in zip(reached, more, strict=True)]
    rest = list(ranges_left(totals(reached), "t", finished, most))
    taken: dict[int, list[int]] = {0: [], 1: []}
    for part in [*steps[:done], *rest]:
        assert sum(of.end - of.first for of in part) <= most + 2
        for of in part:
            taken[of.queue_id] += range(of.first, of.end)
    assert taken == {0: list(range(reached[0])), 1: list(range(reached[1]))}


SENT = pa.RecordBatch.from_pylist(
    [{"toBroker": "b", "toQueue": 0, "toOffset": 9 + number, "found": number == 0} for number in range(5)]
)
"""The rows of a mapping, as a task returns them."""


def test_a_ledger_knows_its_job_and_what_was_begun(tmp_path: Path) -> None:
    ledger, log = ReplayLedger(open_storage(tmp_path / "ledger")), ArchiveLog(tmp_path / "lake")
    plan = Plan(0, [Range("b", 0, 0, 5)], [TargetEnd("b", 0, 9)])
    with ledger.opened(JOB, "first", log) as opened:
        assert (opened.run, opened.replay_id) == (0, "first")
        other = ReplayLedger(open_storage(tmp_path / "ledger"))
        with pytest.raises(ArchiveError, match="another job"), other.opened(JOB, "x", log):
            pass
        assert ledger.plan_of(0) is None
        ledger.write_plan(opened, plan)
    with ledger.opened(JOB, "second", log) as opened:
        assert (opened.run, opened.replay_id) == (1, "first")
        assert (ledger.plan_of(0), ledger.steps()) == (plan, [])
        [file] = write_mapping(opened, 0, [SENT])
        left = open_storage(tmp_path / "ledger")
        left.put("mapping/step=0/part-of-a-repeated-task.parquet", b"x")
        ledger.write_done(opened, plan, [file])
        assert [(done.sent, done.found, done.run) for done in ledger.steps()] == [(4, 1, 1)]
        assert ledger.mapping_files() == [file.path]
        assert [found.key for found in left.list_objects("mapping")] == [file.path], "what no commit lists goes"
        with pytest.raises(ArchiveError, match=r"another job has written .*commits/0{20}\.json"):
            ledger.write_done(opened, plan, [])
    changed = ReplayJob("/lake", "t", "127.0.0.1:9876", "elsewhere", False, False, Selection(tags=("a",)))
    with pytest.raises(ArchiveError, match="to, selection differ"), ledger.opened(changed, "x", log):
        pass
    (tmp_path / "ledger" / "job.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"job\.json is damaged"), ledger.opened(JOB, "x", log):
        pass


def test_queues_keep_their_broker_or_take_the_only_one() -> None:
    old = [Queue("t", "a", 0), Queue("t", "b", 0)]
    assert same_queues(old, [Queue("c", "a", 0), Queue("c", "b", 0)]) == {old[0]: 0, old[1]: 1}
    assert same_queues(old[1:], [Queue("c", "z", 0)]) == {old[1]: 0}
    with pytest.raises(OptionError, match="no queue for t@a:0"):  # two brokers' queues are not mixed into one
        same_queues(old, [Queue("c", "z", 0)])


def resent(offset: int, replay_id: str = "r1") -> Resent:
    """A message that stood at an offset."""
    origin = Origin("old", 0, offset)
    text = properties_with("TAGS\x01A\x02", origin_text(replay_id, origin, 1000 + offset))
    return Resent(origin, 1000 + offset, offset, 0, b"%d" % offset, text.encode())


def task(topics: Topics, topic: str, **more: Any) -> ReplayTask:
    """The part that a task of one queue gets."""
    fields: dict[str, Any] = {"per_second": None, "keep_born_time": False, "timeout_ms": 20_000} | more
    ledger = OpenedLedger(fields.pop("storage", open_storage("/nowhere")), 0, fields.pop("replay_id", "r1"))
    return ReplayTask({"namesrvAddr": topics.namesrv}, ledger, (Queue(topic, topics.broker_name, 0),), (0,), **fields)


@contextmanager
def sender_of(task: ReplayTask) -> Iterator[QueueSender]:
    """A sender to its first queue."""
    with closing(TaskSender(task)) as sender:
        yield QueueSender(task, 0, Pace(None), sender)


def test_a_message_without_room_for_its_origin_is_named() -> None:
    row = {"brokerName": "b", "queueId": 1, "queueOffset": 7, "flag": 0, "sysFlag": 0, "stored": b"x"}
    row |= {"bornTimestamp": datetime.fromtimestamp(1, UTC), "propertiesText": f"a\x01{'x' * 32_740}\x02"}
    with pytest.raises(SinkError, match=r"message 7 of queue 1 of b is too large .*--where"):
        list(messages_of(pa.RecordBatch.from_pylist([row]), "r"))


def test_what_a_topic_has_dropped_cannot_be_told() -> None:
    """A run died, and messages that it may have sent are gone by the time of the next."""
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    keys = {"mappedFileSizeCommitLog": "65536", "fileReservedTime": "0", "deleteWhen": hours}
    with SyncCluster(broker_keys=keys | {"cleanResourceInterval": "100", "flushIntervalCommitLog": "50"}) as cluster:
        topics = Topics(cluster.namesrv_address, cluster.cluster.brokers[0].address)
        topic = topics.create(1)
        topics.send(topic, 0, [bytes(100)] * 2000)
        brokers = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic}))
        (queue,) = brokers.queues()
        wait_for(lambda: brokers.bounds([queue])[queue].first > 0, "the first file has gone", PATIENCE_S)
        message = r"unknown which messages the replay sent .*to a new topic, with a new"
        with pytest.raises(SinkError, match=message), sender_of(replace(task(topics, topic), queues=(queue,))):
            pass


def test_a_repeated_task_finds_what_was_sent(topics: Topics) -> None:
    topic = topics.create(1)
    of_one_queue = task(topics, topic)
    with sender_of(of_one_queue) as first:
        assert first.send([resent(3), resent(4)]) == [(Origin("old", 0, 3), 0, False), (Origin("old", 0, 4), 1, False)]
    topics.send(topic, 0, [b"foreign"])
    with sender_of(task(topics, topic, replay_id="r2")) as other:
        other.send([resent(3, "r2")])
    with sender_of(of_one_queue) as second:
        assert second.send([resent(3), resent(4), resent(5)]) == [
            (Origin("old", 0, 3), 0, True),
            (Origin("old", 0, 4), 1, True),
            (Origin("old", 0, 5), 4, False),
        ]
    assert [record.body for record in stored(topics, topic, 1)[0]] == [b"3", b"4", b"foreign", b"3", b"5"]


def test_a_task_of_a_run_that_was_taken_over_sends_nothing_more(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was paused or cut off, or it has outlived its driver."""
    topic, storage = topics.create(1), open_storage(tmp_path / "ledger")
    monkeypatch.setattr("cometmq.spark.jobs.replay.sender.OWNER_SECONDS", 0.02)
    first, second = ReplayLedger(storage), ReplayLedger(storage)
    with sender_of(task(topics, topic, storage=storage)) as sender:
        assert first._take_over() == 0
        sender.send([resent(0)])
        monkeypatch.setattr(ledgers, "TAKE_OVER_SECONDS", 0.05)
        assert second._take_over() == 1
        with pytest.raises(ArchiveError, match=r"another job has opened the ledger .* only one job use a ledger"):
            sender.send([resent(1)])
    with pytest.raises(ArchiveError, match="another job has opened the ledger"):
        first.write_plan(OpenedLedger(storage, 0, "r1"), Plan(0, [], []))
    assert [record.body for record in stored(topics, topic, 1)[0]] == [b"0"]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_request_of_unknown_fate_is_looked_up(topics: Topics, monkeypatch: pytest.MonkeyPatch, arrives: bool) -> None:
    """The connection breaks after the request was stored, or before it was sent: each message is there once."""
    topic = topics.create(1)
    broken: list[bytes] = []
    send, receive = BlockingConnection.send, BlockingConnection.receive

    def sends(self: BlockingConnection, data: bytes) -> None:
        if not arrives and not broken:
            broken.append(data)
            raise BlockingConnectionError(self.address, "cut")
        send(self, data)

    def receives(self: BlockingConnection, timeout_s: float | None = None) -> RemotingCommand:
        answer = receive(self, timeout_s)
        if arrives and not broken:
            broken.append(b"")
            raise BlockingConnectionError(self.address, "cut")
        return answer

    with sender_of(task(topics, topic)) as sender:
        sender.send([resent(0)])
        monkeypatch.setattr(BlockingConnection, "send", sends)
        monkeypatch.setattr(BlockingConnection, "receive", receives)
        outcome = sender.send([resent(1), resent(2)])
    assert broken
    assert outcome == [(Origin("old", 0, 1), 1, arrives), (Origin("old", 0, 2), 2, arrives)]
    assert [record.body for record in stored(topics, topic, 1)[0]] == [b"0", b"1", b"2"]


def rows_of(places: list[tuple[int, int]]) -> pa.RecordBatch:
    """Rows for targets, each as (target, offset), as Spark hands them to a task."""
    same = {"brokerName": "old", "flag": 0, "sysFlag": 0, "propertiesText": "", "bornTimestamp": datetime.now(UTC)}
    return pa.RecordBatch.from_pylist(
        [{"target": at, "queueId": at, "queueOffset": n, "stored": b"%d/%d" % (at, n)} | same for at, n in places]
    )


def test_one_task_sends_to_many_queues_in_turn_at_its_rate(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create(8)
    queues = tuple(Queue(topic, topics.broker_name, at) for at in range(8))
    given = replace(task(topics, topic), queues=queues, ends=(0,) * 8, per_second=(1000.0,) * 8)
    sent_at: list[float] = []
    connections: set[int] = set()
    send = BlockingConnection.send

    def sends(self: BlockingConnection, data: bytes) -> None:
        if b"REPLAY_ORIGIN" in data:
            sent_at.extend([time.monotonic()] * data.count(b"REPLAY_ORIGIN"))
            connections.add(id(self))
        send(self, data)

    monkeypatch.setattr(BlockingConnection, "send", sends)
    places = [(at, 10 * turn + n) for turn in range(5) for at in range(8) for n in range(10)]
    sent = [batch.to_pylist() for batch in send_batches(given, [rows_of(places[:250]), rows_of(places[250:])])]
    assert len(connections) == 1, "queues of a broker share its connection"
    assert Counter((row["toQueue"], row["toOffset"]) for rows in sent for row in rows) == Counter(places)
    records = stored(topics, topic, 8)
    assert [[record.body for record in queue] for queue in records] == [
        [b"%d/%d" % (at, n) for n in range(50)] for at in range(8)
    ]
    assert max(queue[0].physical_offset for queue in records) < min(queue[-1].physical_offset for queue in records)
    for first, at in enumerate(sent_at):
        last = max(number for number, other in enumerate(sent_at) if other <= at + 0.2)
        assert last + 1 - first <= 1000 * (0.2 + CATCH_UP_SECONDS)


def test_a_replayed_message_begins_a_new_life(topics: Topics) -> None:
    """The archive has the length of its life, and an end that may be long past."""
    topic = topics.create(1)
    text = "COMETMQ_TTL_MS\x0160000\x02COMETMQ_EXPIRES_MS\x011000\x02own\x01value\x02"
    row = {"target": 0, "brokerName": "old", "queueId": 0, "queueOffset": 7, "flag": 0, "sysFlag": 0, "stored": b"x"}
    rows = pa.RecordBatch.from_pylist([row | {"propertiesText": text, "bornTimestamp": datetime.now(UTC)}])
    list(send_batches(task(topics, topic), [rows]))
    ((record,),) = stored(topics, topic, 1)
    assert (record.properties["COMETMQ_TTL_MS"], record.properties["own"]) == ("60000", "value")
    if SYSTEM is System.COMETMQ:
        assert int(record.properties["COMETMQ_EXPIRES_MS"]) == pytest.approx(record.store_timestamp + 60_000, abs=1_000)
        assert record.properties_text.count("COMETMQ_EXPIRES_MS") == 1


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=40),
    st.floats(0.1, 10**6),
    st.integers(1, 16),
)
def test_tasks_share_the_rate_and_end_together(loads: list[int], per_second: float, at_a_time: int) -> None:
    tasks, rates = shares_of(loads, per_second, at_a_time)
    assert rates is not None
    of_task = dict(zip(tasks, rates, strict=True))
    assert len(of_task) <= at_a_time, "none has to wait with its share"
    assert sum(of_task.values()) == pytest.approx(per_second)
    assert len(of_task) == 1 or per_second > 20_000, "a low rate does not depend on how messages are spread"
    for task, rate in of_task.items():
        load = sum(load for load, of in zip(loads, tasks, strict=True) if of == task)
        assert load / rate == pytest.approx(sum(loads) / per_second)


def test_without_a_rate_each_queue_has_a_task() -> None:
    assert shares_of([5, 1, 1, 1], None, 2) == ((0, 1, 2, 3), None)


@pytest.mark.parametrize(
    ("per_second", "step"), [(None, 500_000), (0.1, 200_000), (43_000.0, 500_000), (15_000.0, 300_000), (1e9, 500_000)]
)
def test_a_step_is_as_large_as_its_rate_allows(per_second: float | None, step: int) -> None:
    assert step_of(per_second) == step
