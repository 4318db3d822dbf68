"""The audit job: it agrees with what is right, and names what is not."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.waiting import wait_for
from tests.spark.lake_files import AT_MS, HOUR_MS, append, cover, messages, written_rows
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow.parquet as pq

from cometmq.archive.changes import Batch
from cometmq.broker.config import LiveConfig
from cometmq.cli.jobs.pipeline import command
from cometmq.message.trace_record import Pub, encode_trace
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.upkeep import expire
from cometmq.spark.jobs.audit.frames import archived_frame, minutes_of
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.audit.report import AuditReport
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.records.queues import Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options
from cometmq.testing import SyncCluster, VirtualClock

pytestmark = pytest.mark.spark


def commit(topics: Topics, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Let a group have consumed so far."""
    cluster = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic}))
    cluster.commit_offsets(group, {Queue(topic, topics.broker_name, number): at for number, at in offsets.items()})


def told(report: AuditReport) -> str:
    """All that differs."""
    return "\n".join(found.what for found in report.disagreements)


def sent(topic: str, key: str, *, success: bool = True) -> str:
    """The trace record of one message that a producer sends."""
    return encode_trace(
        Pub(
            time_ms=int(time.time() * 1000),
            region="DefaultRegion",
            group="producers",
            topic=topic,
            msg_id=key,
            tags=None,
            keys=None,
            store_host="127.0.0.1:10911",
            body_bytes=1,
            cost_ms=1,
            msg_type=0,
            offset_msg_id="",
            success=success,
        )
    )


def test_archive_audit_replay_audit_agree(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """The whole way once: nothing differs, and numbers are those that were sent."""
    topic, copy, trace = topics.create(2), topics.create(2), topics.create(1)
    for number in range(8):
        topics.send(topic, number % 2, [b"%d" % number], f"UNIQ_KEY\x01KEY{number}\x02")
    topics.send(topic, 1, [b"more"] * 300)
    records = [sent(topic, f"KEY{number}") for number in range(8)]
    records += [sent(topic, "FAILED", success=False), sent("other", "ELSEWHERE")]
    now = records[0].split("\x01")[1]
    records += [records[0].replace(now, time) for time in ("no time", "", "9" * 18)]  # which nobody checks
    topics.send(trace, 0, ["".join(records[:6]).encode(), "".join(records[6:]).encode()])
    commit(topics, "readers", topic, {0: 4, 1: 100})
    lake = tmp_path / "lake"
    archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=spark)
    first = audit(
        topics.namesrv,
        topic,
        archive=lake,
        groups=["readers"],
        trace_topic=trace,
        detail=tmp_path / "detail",
        spark=spark,
    )
    assert told(first) == ""
    assert first.agrees
    assert (first.produced, first.notes) == (8, ())
    assert [(of.stored, of.archived, of.end, of.archived_to, dict(of.consumed)) for of in first.queues] == [
        (4, 4, 4, 4, {"readers": 4}),
        (304, 304, 304, 304, {"readers": 100}),
    ]
    assert (sum(span.stored for span in first.spans), sum(span.consumed for span in first.spans)) == (308, 104)
    assert [of.way for of in first.lateness] == ["born → stored", "stored → archived"]
    assert all(0 <= of.median_ms <= of.p99_ms <= of.longest_ms for of in first.lateness)
    assert "group readers: 204 messages behind, in 2 queues" in first.render()
    with pytest.raises(OptionError, match="lake already exists"):  # not even an empty one is replaced
        audit(topics.namesrv, topic, detail=lake, spark=spark)
    detail = spark.read.parquet(str(tmp_path / "detail"))
    assert detail.groupBy().sum("stored", "archived", "archivedBoth").collect()[0][:] == (308, 308, 308)

    latest = detail.selectExpr("max(storedLateMs)", "max(archivedLateMs)").collect()[0]
    assert latest[:] == tuple(of.longest_ms for of in first.lateness)

    replay(lake, topics.namesrv, tmp_path / "ledger", to=copy, translate_groups=["readers"], spark=spark)
    second = audit(topics.namesrv, copy, groups=["readers"], spark=spark)
    assert told(second) == ""
    assert [(of.stored, dict(of.consumed)) for of in second.queues] == [(4, {"readers": 4}), (304, {"readers": 100})]
    assert second.produced is None


def test_what_differs_is_named(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, trace = topics.create(2), topics.create(1)
    topics.send(topic, 0, [b"once"] * 20)
    topics.send(topic, 1, [b"twice", b"twice"], "UNIQ_KEY\x01TWICE\x02")
    topics.send(trace, 0, [(sent(topic, "TWICE") + sent(topic, "LOST")).encode()])
    lake = tmp_path / "lake"
    archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=spark)
    log = ArchiveLog(lake)
    path = lake / next(file.path for file in log.files() if file.queue_id == 0)
    whole = pq.read_table(path)
    pq.write_table(whole.filter([at not in (3, 4) for at in range(20)]), path)  # a file that lost two rows
    path = lake / next(file.path for file in log.files() if file.queue_id == 1)
    twice = pq.read_table(path)
    pq.write_table(twice.take([0, 1, 1]), path)  # and one that has a row twice
    topics.send(topic, 1, [b"later"])
    commit(topics, "ahead", topic, {0: 25, 1: 2})

    report = audit(topics.namesrv, topic, archive=lake, groups=["ahead"], trace_topic=trace, spark=spark)
    words = told(report)
    zero, one = (str(Queue(topic, topics.broker_name, number)) for number in range(2))
    assert f"{zero}: group ahead has consumed up to 25, and the queue ends at 20" in words
    assert f"{zero}: the archive's log lists 20 messages, but its files contain 18" in words
    assert f"{zero}: offsets 3 to 5 are missing in the archive" in words
    assert ": 20 stored and 18 archived, the counts differ" in words
    assert f"{one}: the archive's log lists 2 messages, but its files contain 3" in words
    assert f"{one}: offset 1 is in the archive 2 times" in words
    assert "1 unique key is stored more than once (1 copy): TWICE" in words
    assert "1 message that producers had acknowledged is neither stored nor archived: LOST" in words
    assert report.notes == ("1 message is not archived yet",)
    assert "✘" in report.render()
    assert "→ " in report.render()


def test_what_retention_has_taken_out_is_not_missing(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """The clock of a broker went back for a while, so that hours interleave, and the older one expires."""
    topic = topics.create(1)
    queue, clock = Queue(topic, topics.broker_name, 0), VirtualClock(start_ms=AT_MS + 5 * HOUR_MS // 2)
    log = ArchiveLog(tmp_path / "lake", clock=clock)
    hours = ((range(3), AT_MS), (range(3, 5), AT_MS + 2 * HOUR_MS), (range(5, 7), AT_MS))
    files = written_rows(tmp_path / "lake", queue, [messages(queue, *hour) for hour in hours])
    log.append(Batch("q", 0, [cover(queue, 0, 7)], files))
    append(log, 1, queue, 7, 9, at_ms=AT_MS + 2 * HOUR_MS)
    stored = archived_frame(spark, log, topic).drop("archivedTimestamp")
    assert expire(Path(log.url), keep_ms=HOUR_MS, clock=clock).rows == 5

    archived, [of] = archived_frame(spark, log, topic), log.queues()
    for expired, differing in (((of.expired_to, of.expired_before_ms), 0), ((0, 0), 1)):
        minutes = minutes_of(spark, stored, archived, [(of.broker, 0, of.first, of.next, *expired, 0)])
        assert minutes.where("storedBoth != archivedBoth OR NOT storedContent <=> archivedContent").count() == differing
    report = audit(topics.namesrv, topic, archive=Path(log.url), spark=spark)
    assert told(report) == f"{queue}: the archive goes up to 9, and the queue ends at 0", "the topic itself is empty"
    [note] = report.notes
    assert "retention has removed messages stored before 2024-01-01 01:00 UTC, up to offset 7" in note

    path = Path(log.url) / log.files()[-1].path
    whole = pq.read_table(path)
    pq.write_table(whole.filter([at != 8 for at in whole["queueOffset"].to_pylist()]), path)
    words = told(audit(topics.namesrv, topic, archive=Path(log.url), spark=spark))
    assert "offsets 8 to 9 are missing in the archive" in words


def test_a_topic_made_anew_does_not_go_with_its_archive(spark: Any, topics: Topics, tmp_path: Path) -> None:
    from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
    from cometmq.remoting.blocking import BlockingConnection
    from cometmq.remoting.codes import RequestCode

    topic = topics.fill(50, queues=1)
    lake = tmp_path / "lake"
    archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=spark)
    with BlockingConnection(topics.broker, 60) as connection:
        assert connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic)).code == 0
    topics.create(1, name=topic)
    topics.send(topic, 0, [b"new"] * 10)
    words = told(audit(topics.namesrv, topic, archive=lake, spark=spark))
    assert "the archive goes up to 50, and the queue ends at 10" in words
    assert "the messages differ" in words, "equal offsets, other messages"


def test_what_expires_while_it_is_read_is_not_missing(spark: Any, tmp_path: Path) -> None:
    """Retention takes the older half between the first question and the reading; of it the archive has a part."""
    keys = {"mappedFileSizeCommitLog": "65536", "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24))}
    with SyncCluster(broker_keys=keys | {"cleanResourceInterval": "100", "flushIntervalCommitLog": "50"}) as cluster:
        topics = Topics(cluster.namesrv_address, cluster.run(lambda inner: inner.broker(0).address))
        topic, trace = topics.create(1), topics.create(1)
        topics.send(topic, 0, [bytes(100)] * 300)
        archive(topics.namesrv, topic, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
        topics.send(topic, 0, [bytes(100)] * 1700)
        held = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic}))
        (queue,) = held.queues()

        def expire_now(step: str) -> None:
            if step.startswith("counting"):
                cluster.run(lambda inner: keep_nothing(inner.broker(0).live))
                wait_for(lambda: held.bounds([queue])[queue].first > 1000, "the first half has expired", 60)

        report = audit(
            topics.namesrv, topic, archive=tmp_path / "lake", trace_topic=trace, spark=spark, on_step=expire_now
        )
        (found,) = report.disagreements
        assert re.fullmatch(rf"{queue}: offsets 300 to 1,\d+ were deleted before they were archived", found.what)
        assert re.match(r"1,\d+ messages of 1 queue expired while they were read", report.notes[0])
        assert report.queues[0].stored is not None
        assert 0 < report.queues[0].stored < 1000


def keep_nothing(live: LiveConfig) -> None:
    live.replace(replace(live.current, file_reserved_time=0))


def test_arguments_that_do_not_fit_are_told(topics: Topics, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has topic nosuch"):
        audit(topics.namesrv, "nosuch")
    topic = topics.create(1)
    with pytest.raises(OptionError, match="contains no archive"):
        audit(topics.namesrv, topic, archive=tmp_path)
    wrong = CliRunner().invoke(command, ["audit", "--namesrv", topics.namesrv, "--topic", "nosuch"])
    assert wrong.exit_code == 2
    assert "has topic nosuch" in wrong.output


def test_the_command_says_by_its_exit_code_whether_it_agrees(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    topic = topics.create(1)
    topics.send(topic, 0, [b"twice", b"twice"], "UNIQ_KEY\x01TWICE\x02")
    page = tmp_path / "audit.html"
    named = ["audit", "--namesrv", topics.namesrv, "--topic", topic, "--report", str(page), "-o", "json"]
    done = CliRunner().invoke(command, named, standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 3, done.stderr
    report = json.loads(done.stdout)
    assert (report["agrees"], report["exit_code"], len(report["disagreements"])) == (False, 3, 1)
    assert "counting 2 stored" in done.stderr
    assert f"Audit of {topic}" in page.read_text()
    assert "TWICE" in page.read_text()
