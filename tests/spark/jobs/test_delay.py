"""The delay job: how exact delayed messages were, what waits, what is stuck, from brokers, archives and stores."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.unpack import unpack
from tests.spark.conftest import RunExample
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.message.hosts import encode_host
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.record import encode_record
from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.columns import HOUR_MS
from cometmq.spark.jobs.delay.job import DAY_MS, _ends, delay, with_reasons
from cometmq.spark.jobs.delay.progress import BrokerProgress, delays_of
from cometmq.spark.jobs.delay.report import Reason
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.store.disk import Disk
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.position import TimerPosition
from cometmq.store.timer.unit import entry_of
from cometmq.testing import VirtualClock

HOST = encode_host("127.0.0.1", 10911)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def told(**properties: object) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items())


class Delayed:
    """A topic with 6 delivered messages (4 of level 1, 2 of any delay) and 3 that wait: two of them two hours.

    Another topic of the broker has one that waits.
    """

    def __init__(self, topics: Topics) -> None:
        self.topic = topics.create(1)
        for number in range(4):
            topics.send_one(self.topic, 0, b"level", told(DELAY=1, UNIQ_KEY=f"L{self.topic}{number}"))
        for number in range(2):
            properties = told(TIMER_DELAY_MS=700, UNIQ_KEY=f"T{self.topic}{number}")
            topics.send_one(self.topic, 0, b"any", properties)
        for number in range(2):
            topics.send_one(self.topic, 0, b"later", told(DELAY=18, UNIQ_KEY=f"W{self.topic}{number}"))
        topics.send_one(self.topic, 0, b"later", told(TIMER_DELAY_SEC=3 * 86_400))
        other = topics.create(1)
        topics.send_one(other, 0, b"later", told(TIMER_DELAY_SEC=86_400))
        topics.await_messages(self.topic, 0, 6)
        topics.await_waiting(other, 1)  # the timer reads one after the other


@pytest.fixture(scope="module")
def delayed(topics: Topics) -> Delayed:
    return Delayed(topics)


@pytest.mark.spark
def test_brokers_tell_how_exact_messages_were_and_what_waits(spark: Any, topics: Topics, delayed: Delayed) -> None:
    report = delay(MessageSource(topics.namesrv), [delayed.topic], spark=spark)
    assert (report.delivered, report.by_born, report.waiting, report.stuck) == (6, 0, 3, 0)
    [of_topic] = report.topics
    assert (of_topic.name, of_topic.messages, of_topic.early) == (delayed.topic, 6, 0)
    assert 0 <= of_topic.p50 <= of_topic.p90 <= of_topic.p99 <= of_topic.max
    assert {of.name: of.messages for of in report.levels} == {"1": 4, "any": 2}
    assert sum(of.messages for of in report.hours) == 6
    assert all(of.topic == delayed.topic and of.late_ms > 0 for of in report.slowest)

    [waits] = report.waiting_topics
    assert (waits.topic, waits.messages) == (delayed.topic, 3)
    assert waits.last_due_ms - waits.first_due_ms > 2 * DAY_MS
    *hours, last = report.due
    first = hours[0]
    assert (sum(of.messages for of in hours), last.messages) == (2, 1)  # a new hour may have begun between the two
    assert first.begin_ms is not None
    assert first.end_ms is not None
    assert last.begin_ms is not None
    assert first.begin_ms <= waits.first_due_ms < first.end_ms == first.begin_ms + HOUR_MS
    assert last.end_ms == last.begin_ms + DAY_MS
    assert [(of.topic, of.messages) for of in report.timer_counts] == [(delayed.topic, 1)]
    assert not report.notes


@pytest.mark.spark
def test_what_is_due_and_was_not_delivered_is_stuck(spark: Any, topics: Topics, delayed: Delayed) -> None:
    """Seen three hours from now, by a clock of its own: the broker has not come to the two of level 18."""
    clock = VirtualClock(start_ms=now_ms() + 3 * HOUR_MS)
    report = delay(MessageSource(topics.namesrv), [delayed.topic], clock=clock, spark=spark)
    assert (report.delivered, report.waiting, report.stuck) == (6, 1, 2)
    assert [(of.reason, of.topic, of.messages) for of in report.stuck_reasons] == [
        (Reason.NOT_REACHED, delayed.topic, 2)
    ]
    assert {of.unique_key for of in report.stuck_messages} == {f"W{delayed.topic}0", f"W{delayed.topic}1"}
    assert all(of.level == 18 and len(of.msg_id) == 32 for of in report.stuck_messages)
    assert "has not delivered it yet" in report.render()
    # What was due before the time asked for may have been delivered before it, too: nobody can tell.
    later = MessageSource(topics.namesrv, begin_ms=clock.now_ms())
    unknown = delay(later, [delayed.topic], clock=clock, spark=spark)
    assert (unknown.delivered, unknown.waiting, unknown.stuck) == (0, 1, 0)
    assert any("it is unknown whether they were delivered" in note for note in unknown.notes)


@pytest.mark.spark
def test_recalled_messages_are_not_stuck_and_those_of_topics_made_anew_are(spark: Any, topics: Topics) -> None:
    topic = topics.create(1)
    due_ms = now_ms() + DAY_MS
    topics.send_one(topic, 0, b"x", told(TIMER_DELIVER_MS=due_ms, UNIQ_KEY="RECALLED"))
    recall = told(TIMER_DELIVER_MS=due_ms, UNIQ_KEY="RECALLED", TIMER_DEL_UNIQKEY=f"{topic}+RECALLED")
    topics.send_one(topic, 0, b"0", recall)
    topics.send_one(topic, 0, b"lost", told(DELAY=1, UNIQ_KEY="LOST"))
    topics.await_messages(topic, 0, 1)
    with BlockingConnection(topics.broker, 60) as connection:
        answer = connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))
        assert answer.code == ResponseCode.SUCCESS
    topics.create(1, topic)
    clock = VirtualClock(start_ms=due_ms + HOUR_MS)
    report = delay(MessageSource(topics.namesrv), [topic], clock=clock, spark=spark)
    assert [(of.unique_key, of.reason) for of in report.stuck_messages] == [("LOST", Reason.PASSED)]
    assert (report.delivered, report.waiting) == (0, 0)


@pytest.mark.spark
def test_a_topic_that_may_not_be_read_is_left_out_and_told(spark: Any, topics: Topics, delayed: Delayed) -> None:
    closed = topics.create(1, permission=2)
    report = delay(MessageSource(topics.namesrv), spark=spark)
    assert f"topic {closed} is left out because it is not readable" in report.notes
    assert delayed.topic in {of.name for of in report.topics}
    with pytest.raises(OptionError, match=f"topic {closed} is not readable .*topic alter {closed} --permission rw"):
        delay(MessageSource(topics.namesrv), [closed], spark=spark)


@pytest.mark.spark
def test_an_archive_tells_the_same_as_far_as_it_goes(
    spark: Any, topics: Topics, delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    wanted = [delayed.topic, SCHEDULE_TOPIC, TIMER_TOPIC]
    archive(topics.namesrv, wanted, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    arguments = ["delay", "--topic", delayed.topic, "--archive", str(tmp_path / "lake")]

    def run(*more: str) -> Any:
        return CliRunner().invoke(command, [*arguments, *more], standalone_mode=False, catch_exceptions=False)

    page = tmp_path / "delay.html"
    shown = run("--report", str(page))
    assert shown.return_value == 0
    assert "6 delayed messages delivered, 3 waiting, 0 stuck" in shown.stdout
    assert "Delayed messages of" in page.read_text()
    # Much later nothing was archived of the topic, so that nobody can say that they did not come.
    found = json.loads(run("--until", str(now_ms() + 3 * HOUR_MS), "-o", "json").stdout)
    assert (found["stuck"], found["waiting"], found["exit_code"]) == (0, 1, 0)

    # Without the topics where messages wait, levels are measured from the born time.
    archive(topics.namesrv, delayed.topic, tmp_path / "only", tmp_path / "other", spark=spark)
    alone = delay(MessageSource(archive=tmp_path / "only"), spark=spark)
    assert (alone.delivered, alone.by_born, alone.waiting) == (6, 4, 0)
    assert len(alone.notes) == 2


# Stores ---------------------------------------------------------------------------------------------


@pytest.fixture
def apache_store(golden: Path, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store of Apache RocketMQ 4.9 with messages that wait for levels, and the answers of its broker about it."""
    source = golden / "stores" / "clean"
    unpack(source / "store.tar.gz", tmp_path)
    with gzip.open(source / "manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
        return tmp_path / "store", [json.loads(line) for line in lines]


@pytest.mark.spark
def test_a_store_of_apaches_tells_what_its_broker_would_have(
    spark: Any, apache_store: tuple[Path, list[dict[str, Any]]]
) -> None:
    store, truth = apache_store
    waited = [line for line in truth if line["kind"] == "message" and line["topic"] == SCHEDULE_TOPIC]
    [offsets] = [line for line in truth if line["kind"] == "delayOffset"]
    reached = {int(level): int(offset) for level, offset in offsets["offsets"].items()}
    left = [line for line in waited if line["queueOffset"] >= reached.get(line["queueId"] + 1, 0)]
    source = MessageSource(store=store, broker_name="gold")
    report = delay(source, spark=spark)
    assert (report.waiting, report.stuck) == (len(left), 0)
    assert len(left) > 0
    assert report.delivered == len(waited) - len(left)
    assert report.by_born == 0
    # The broker looks every 100 ms, and was not always quick.
    assert all(of.early == 0 for of in report.topics)

    years_later = delay(MessageSource(store=store, broker_name="gold", end_ms=now_ms()), spark=spark)
    assert (years_later.waiting, years_later.stuck) == (0, len(left))
    assert {of.reason for of in years_later.stuck_reasons} == {Reason.NOT_REACHED}
    assert {of.msg_id for of in years_later.stuck_messages} == {line["msgId"] for line in left}


def waiting_record(serial: int, due_ms: int, topic: str) -> bytes:
    return encode_record(
        topic=TIMER_TOPIC,
        queue_id=0,
        queue_offset=serial,
        physical_offset=0,
        body=b"waits",
        properties_text=told(UNIQ_KEY=f"S{serial}", REAL_TOPIC=topic, REAL_QID=0, TIMER_OUT_MS=due_ms),
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
    )


@pytest.mark.spark
def test_messages_that_only_the_timer_log_has_are_seen(
    spark: Any, apache_store: tuple[Path, list[dict[str, Any]]]
) -> None:
    """Five messages whose records have left the log: one delivered, one late, one damaged, two due next year."""
    store, _ = apache_store
    at_ms = now_ms()
    timer_log = TimerLog(store / "comet" / "timer", Disk())
    dues = [at_ms - HOUR_MS, at_ms - HOUR_MS, at_ms - HOUR_MS, at_ms + 365 * DAY_MS, at_ms + 365 * DAY_MS]
    records = [waiting_record(serial, due_ms, "GoldGone") for serial, due_ms in enumerate(dues)]
    timer_log.append([entry_of(record, serial, 0) for serial, record in enumerate(records)])
    timer_log.save(TimerPosition(serial=5, until_ms=at_ms - HOUR_MS, late=[1, 2]))
    timer_log.close()
    [data] = [path for path in (store / "comet" / "timer").glob("*.data") if b"S2" in path.read_bytes()]
    data.write_bytes(data.read_bytes().replace(b"S2", b"S9"))

    shutil.rmtree(store / "consumequeue" / SCHEDULE_TOPIC)  # of these another test speaks
    report = delay(MessageSource(store=store, end_ms=at_ms), spark=spark)
    assert report.waiting == 2
    assert [(of.topic, of.messages) for of in report.waiting_topics] == [("GoldGone", 2)]
    assert {(of.unique_key, of.reason) for of in report.stuck_messages} == {
        ("S1", Reason.NO_TOPIC),
        ("", Reason.NOWHERE),
    }
    assert all(of.end_ms is None for of in report.due)


# Parts ----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_reasons_follow_from_what_brokers_say(spark: Any) -> None:
    stuck = [
        ("a", "orders", 0, False, 3, 10, 5, 1),  # the queue of level 3 is delivered up to 5
        ("a", "orders", 0, False, 3, 10, 4, 1),
        ("a", "gone", 0, False, 3, 10, 4, None),
        ("a", "", -1, False, 3, 10, 4, None),
        ("a", "orders", 0, True, 0, 10, 4, 1),  # RocketMQ 4
        ("b", "orders", 0, True, 0, 10, 4, 1),
        ("b", "orders", 0, True, 0, 30, 4, 1),  # the timer is at 20
        ("c", "orders", 0, True, 0, 10, 4, 1),
    ]
    columns = (
        "broker string, topic string, queueId int, anyDelay boolean, level int, dueMs bigint, waitingOffset bigint"
    )
    progress = [
        BrokerProgress("a", (1,), {3: 5}, has_timer=False),
        BrokerProgress("b", (1,), {}, has_timer=True, timer_until_ms=20),
        BrokerProgress("c", (1,)),
    ]
    rows = with_reasons(spark.createDataFrame(stuck, f"{columns}, seenMs bigint"), progress)
    assert Counter(Reason(row["reason"]) for row in rows.collect()) == {
        Reason.NOT_REACHED: 2,
        Reason.PASSED: 2,
        Reason.NO_TOPIC: 1,
        Reason.NOWHERE: 1,
        Reason.NO_TIMER: 1,
        Reason.UNKNOWN: 1,
    }


@given(st.integers(0, 1 << 41), st.integers(1, 366))
def test_stretches_follow_each_other_without_gaps(at_ms: int, days: int) -> None:
    first_ms = at_ms - at_ms % HOUR_MS
    ends = [_ends(stretch, first_ms, days) for stretch in range(24 + days)]
    assert ends[0][0] == first_ms
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    assert ends[-1] == (first_ms + days * DAY_MS, None)
    assert _ends(-1, first_ms, days) == (None, None)


@pytest.mark.spark
def test_the_example_runs(
    run_example: RunExample, topics: Topics, delayed: Delayed, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_example("delays.py", topics.namesrv, delayed.topic)
    assert "6 delayed messages delivered, 3 waiting, 0 stuck" in capsys.readouterr().out


def test_wrong_use() -> None:
    source = MessageSource("127.0.0.1:1")
    with pytest.raises(OptionError, match="days must be"):
        delay(source, days=0)
    for nowhere in (MessageSource(), MessageSource("127.0.0.1:1", store=Path("store"))):
        with pytest.raises(OptionError, match="the source to read is missing"):
            delay(nowhere)
    with pytest.raises(OptionError, match="invalid delay levels"):
        delays_of("1s 5parsecs")
    assert delays_of("1s 2h") == (1000, 7_200_000)
