"""The archive job: exactly once, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.pace import Patience
from tests.interop.systems import Deployment
from tests.spark.drivers import PATIENCE_S, end_group, run_until_killed, start_driver
from tests.spark.jobs.archive.archiving import MOST, driver_words
from tests.spark.lake_files import demand_exactly
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import ArchiveLog, read_archive, record_of
from cometmq.spark.errors import ArchiveError, OptionError, SparkSourceError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.report import ArchivedBatch
from cometmq.spark.jobs.run import cause_of

pytestmark = pytest.mark.spark


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Archive and checkpoint."""
    return tmp_path / "lake", tmp_path / "checkpoint"


def test_runs_go_on_where_the_last_one_ended(spark: Any, topics: Topics, places: tuple[Path, Path]) -> None:
    to, checkpoint = places
    topic = topics.fill(3000, queues=2)
    done: list[ArchivedBatch] = []
    report = archive(
        topics.namesrv, topic, to, checkpoint, max_offsets_per_trigger=2000, spark=spark, on_batch=done.append
    )
    assert (report.rows, report.files, report.batches, report.finished, report.complete) == (3000, 4, 2, True, True)
    assert [batch.total for batch in done] == [2000, 3000]
    assert "now holds 3,000 messages of 2 queues" in report.render()
    topics.send(topic, 1, [b"more"] * 10)
    dry = archive(topics.namesrv, topic, to, checkpoint, dry_run=True)
    assert (dry.rows, dry.total_rows) == (10, 3010)
    assert "10 messages would be archived" in dry.render()
    again = archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    assert (again.rows, again.total_rows) == (10, 3010)
    demand_exactly(spark, to, topic, {0: 1500, 1: 1510})

    # A lost checkpoint: a new one goes on where the archive ends; the old one is then refused.
    topics.send(topic, 0, [b"more"] * 5)
    renewed = archive(topics.namesrv, topic, to, checkpoint.with_name("new"), spark=spark)
    assert renewed.rows == 5
    demand_exactly(spark, to, topic, {0: 1505, 1: 1510})
    with pytest.raises(ArchiveError, match="last written from another checkpoint"):
        archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    # A checkpoint that has gone on with another archive is refused by an empty one.
    with pytest.raises(ArchiveError, match=r"has batches that .* does not hold"):
        archive(topics.namesrv, topic, to.with_name("empty"), checkpoint, spark=spark)


def test_everything_of_a_record_is_kept(spark: Any, topics: Topics, places: tuple[Path, Path]) -> None:
    """Bytes of records can be made again from the archive."""
    from cometmq.client.queries import pull_header
    from cometmq.remoting.blocking import BlockingConnection
    from cometmq.remoting.codes import RequestCode
    from cometmq.spark.records.queues import Queue

    topic = topics.fill(20, queues=1)
    archive(topics.namesrv, topic, *places, spark=spark)
    with BlockingConnection(topics.broker, 60) as connection:
        pull = pull_header(Queue(topic, "broker-a", 0), 0, 20, "tests")
        stored = connection.invoke(RequestCode.PULL_MESSAGE, pull).body
    rows = read_archive(spark, places[0]).orderBy("queueOffset").collect()
    made = b"".join(record_of(row.asDict()) for row in rows)
    assert made == stored


def batch_of(log: ArchiveLog) -> int:
    last = log.last()
    return -1 if last is None else last.batch_id


@pytest.mark.crash
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(
    spark: Any, topics: Topics, places: tuple[Path, Path]
) -> None:
    to, checkpoint = places
    topic = topics.fill(15_000, queues=3)
    log = ArchiveLog(to)

    run_until_killed(spark, *driver_words(topics, topic, places, "before-commit", 1))
    assert batch_of(log) == 0
    assert len(log.sweep(dry_run=True)) > 0, "files of the batch that was not committed"
    assert read_archive(spark, to).count() == MOST, "they are not seen"

    run_until_killed(spark, *driver_words(topics, topic, places, "after-commit", 2))
    assert batch_of(log) == 2

    third = start_driver(*driver_words(topics, topic, places, "never", 0))  # its JVM is killed, too
    try:
        patience = Patience(PATIENCE_S)
        while batch_of(log) < 3:  # killed wherever it is, after its first commit
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it ended before it was killed: {third.wait(0.05)}")
            assert not patience.is_over
    finally:
        end_group(third)

    report = archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    assert report.finished
    demand_exactly(spark, to, topic, {0: 5000, 1: 5000, 2: 5000})
    log.sweep()
    demand_exactly(spark, to, topic, {0: 5000, 1: 5000, 2: 5000})


def test_a_commit_that_fails_is_repeated(
    spark: Any, topics: Topics, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the moment of the commit: nothing is lost, and the next run goes on."""
    to, checkpoint = places
    topic = topics.fill(500, queues=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArchiveLog, "append", full)
    with pytest.raises(SparkSourceError, match=r"could not be committed: .*No space left on device"):
        archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    monkeypatch.undo()
    assert ArchiveLog(to).files() == []
    archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    demand_exactly(spark, to, topic, {0: 500})


def test_data_loss_fails_or_is_reported(spark: Any, topics: Topics, places: tuple[Path, Path]) -> None:
    """A topic deleted and made anew has fewer messages than were archived."""
    from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
    from cometmq.remoting.blocking import BlockingConnection
    from cometmq.remoting.codes import RequestCode

    to, checkpoint = places
    topic = topics.fill(50, queues=1)
    archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    with BlockingConnection(topics.broker, 60) as connection:
        assert connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic)).code == 0
    topics.create(queues=1, name=topic)
    with pytest.raises(SparkSourceError, match="failOnDataLoss=false"):
        archive(topics.namesrv, topic, to, checkpoint, spark=spark)

    # Going on all the same must not overwrite files of the old topic with equal names.
    before = {file.path: (to / file.path).read_bytes() for file in ArchiveLog(to).files()}
    tolerant = {"failOnDataLoss": "false"}
    archive(topics.namesrv, topic, to, checkpoint, spark=spark, options=tolerant)
    topics.send(topic, 0, [b"new"] * 50)
    with pytest.raises(ArchiveError, match=r"is not the queue whose messages are in .*: its topic was created again"):
        archive(topics.namesrv, topic, to, checkpoint, spark=spark, options=tolerant)
    assert {file.path: (to / file.path).read_bytes() for file in ArchiveLog(to).files()} == before


def test_arguments_are_checked_before_anything_starts(topics: Topics, places: tuple[Path, Path]) -> None:
    with pytest.raises(OptionError, match="trigger must be availableNow or an interval"):
        archive(topics.namesrv, "t", *places, trigger="often")
    with pytest.raises(OptionError, match="no option 'pulBatchSize'"):
        archive(topics.namesrv, "t", *places, options={"pulBatchSize": "1"})


def test_wrong_use_of_the_command(spark: Any, topics: Topics, places: tuple[Path, Path]) -> None:
    to, checkpoint = map(str, places)
    topic = topics.fill(100, queues=1)
    base = ["--namesrv", topics.namesrv, "--to", to, "--checkpoint", checkpoint]
    wrong = CliRunner().invoke(command, ["archive", *base, "--topic", topic, "--trigger", "often"])
    assert wrong.exit_code == 2
    assert "trigger must be availableNow or an interval" in wrong.output
    page = places[0].with_name("report.html")
    dry = CliRunner().invoke(command, ["archive", *base, "--topic", topic, "--dry-run", "--report", str(page)])
    assert (dry.exit_code, "100 messages would be archived" in dry.output) == (0, True)
    assert "would then hold 100 messages of 1 queue" in page.read_text()
    assert not places[0].exists()
    nothing = CliRunner().invoke(command, ["archive", *base])
    assert nothing.exit_code == 2
    assert "give the topics to archive with --topic or --pattern" in nothing.output


def test_commits_come_when_they_are_full_or_when_messages_have_waited(
    spark: Any, topics: Topics, places: tuple[Path, Path]
) -> None:
    to, checkpoint = places
    topic = topics.fill(250, queues=1)
    stop = threading.Event()
    done: list[int] = []

    def committed(batch: ArchivedBatch) -> None:
        done.append(batch.messages)
        if len(done) == (2 if batch.messages == 100 else 3):
            stop.set()

    named: dict[str, Any] = {"trigger": "100ms", "max_offsets_per_trigger": 100, "spark": spark, "on_batch": committed}
    full = archive(topics.namesrv, topic, to, checkpoint, commit_interval="1h", stop=stop, **named)
    assert (full.rows, done, full.finished) == (200, [100, 100], True), "the rest waits for its hour"
    stop.clear()
    waited = archive(topics.namesrv, topic, to, checkpoint, commit_interval="500ms", stop=stop, **named)
    assert (waited.rows, waited.total_rows, done) == (50, 250, [100, 100, 50])


def test_the_command_goes_on_until_it_is_told_to_stop(topics: Topics, places: tuple[Path, Path]) -> None:
    """A process of its own, as users run it: an interval as trigger, SIGTERM, exit code 0, a report as JSON."""
    to, checkpoint = places
    topic = topics.fill(100, queues=1)
    command = [sys.executable, "-m", "cometmq", "pipeline", "archive", "--namesrv", topics.namesrv, "--topic", topic]
    command += ["--to", str(to), "--checkpoint", str(checkpoint), "--trigger", "500ms", "--master", "local[1]"]
    process = subprocess.Popen(
        [*command, "--vacuum", "-o", "json"], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        await_rows(process, to, 100)
        topics.send(topic, 0, [b"more"] * 11)
        await_rows(process, to, 111)
        process.terminate()
        output, said = process.communicate()
    finally:
        end_group(process)
    assert process.returncode == 0, said
    report = json.loads(output)
    assert (report["rows"], report["total_rows"], report["finished"], report["vacuumed"]) == (111, 111, True, 0)
    assert b"100 messages in 1 file committed" in said
    assert b" WARN " not in said  # what Spark finds normal is not for its users


def await_rows(process: subprocess.Popen[bytes], to: Path, rows: int) -> None:
    """Wait until the archive holds so many messages."""
    patience = Patience(PATIENCE_S)
    while sum(of.rows for of in ArchiveLog(to).queues()) < rows:
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it ended too early with {process.wait(0.05)}")
        assert not patience.is_over


def test_the_cause_is_found_in_what_spark_says() -> None:
    text = "[STREAM_FAILED] Query failed\nTraceback\ncometmq.spark.errors.DataLossError: messages are gone (do x)\n"
    assert cause_of(text) == "messages are gone (do x)"
    assert cause_of("[X]\nTraceback\nOSError: [Errno 28] No space\n  at org.apache") == "OSError: [Errno 28] No space"
    said = "[OTHER] something\nPlease do that. SQLSTATE: 42K03 SQLSTATE: XXKST"
    message = (
        f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {said}\n=== Streaming Query ===\nId: 1"
    )
    assert cause_of(message) == "[OTHER] something Please do that."
    assert cause_of(said + "\n\tat org.apache.spark.X(X.scala:1)") == "[OTHER] something Please do that."
    assert len(cause_of("[PLAN] " + "x" * 100_000)) < 1100


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_a_broker_that_restarts_while_it_is_read(
    spark: Any, deployment: Deployment, topics: Topics, places: tuple[Path, Path]
) -> None:
    """Placed last: it stops and starts the broker of this session."""
    to, checkpoint = places
    topic = topics.fill(6000, queues=2)
    restarted: list[int] = []

    def restart(batch: ArchivedBatch) -> None:
        if not restarted:
            restarted.append(batch.batch_id)
            deployment.broker.stop()
            deployment.start_again(deployment.broker.system)

    options = {"pollTimeoutMs": "60000"}
    report = archive(
        topics.namesrv,
        topic,
        to,
        checkpoint,
        max_offsets_per_trigger=2000,
        spark=spark,
        on_batch=restart,
        options=options,
    )
    assert report.finished
    demand_exactly(spark, to, topic, {0: 3000, 1: 3000})
