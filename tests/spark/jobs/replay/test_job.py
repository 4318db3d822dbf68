"""The replay job: messages come back as they were, in order, and not twice, whatever is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.pace import Patience
from tests.spark.drivers import end_group, run_until_killed, start_driver
from tests.spark.jobs.replay.replaying import said_by
from tests.spark.lake_files import AT_MS, append
from tests.spark.sinking import stored
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.message.properties import decode_properties
from cometmq.message.record import StoredRecord
from cometmq.spark.archives.log import ArchiveLog, read_files
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.message_source import rows_in
from cometmq.spark.jobs.options import Selection
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.jobs.replay.ledger import Plan, ReplayJob, ReplayLedger, TargetEnd
from cometmq.spark.jobs.replay.sender import REPLAY_ORIGIN, SENT_DDL
from cometmq.spark.jobs.task_files import read_table
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options
from cometmq.storage import open_storage

pytestmark = pytest.mark.spark

PATIENCE_S = 240


def origins(records: list[StoredRecord]) -> list[tuple[int, int]]:
    """Queue and offset that each message had."""
    found = []
    for record in records:
        _, queue_id, offset, _, _ = decode_properties(record.properties_text)[REPLAY_ORIGIN].split("/")
        found.append((int(queue_id), int(offset)))
    return found


@pytest.fixture(scope="module")
def lake(spark: Any, topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic of three queues with 900 messages and more of every kind, and its archive."""
    topic = topics.create(3)
    for queue_id in range(3):
        for part in range(3):
            text = f"TAGS\x01tag{part}\x02KEYS\x01key{part} k{queue_id}{part}\x02own\x01ä\x02"
            topics.send(topic, queue_id, [b"%d/%d/%03d" % (queue_id, part, n) for n in range(100)], text)
    topics.send_packed(topic, 1, b"packed " * 500, "KEYS\x01big\x02UNIQ_KEY\x017F00000100000000000000000000ABCD\x02")
    topics.send(topic, 1, [b"last"], "REAL_TOPIC\x01before\x02")
    to = tmp_path_factory.mktemp("replay") / "lake"
    report = archive(topics.namesrv, topic, to, to.with_name("checkpoint"), max_offsets_per_trigger=700, spark=spark)
    assert report.rows == 902
    return topic, to


def test_messages_come_back_as_they_were_and_once(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path
) -> None:
    topic, to = lake
    copy = topics.create(3)
    options = parse_options({"namesrvAddr": topics.namesrv, "topic": topic})
    Cluster(options).commit_offsets("readers", {Queue(topic, topics.broker_name, 1): 42})
    dry = replay(to, topics.namesrv, tmp_path / "ledger", to=copy, dry_run=True, spark=spark)
    assert (dry.messages, [of.messages for of in dry.queues]) == (902, [300, 302, 300])
    assert not (tmp_path / "ledger").exists()
    assert stored(topics, copy, 3) == [[], [], []]

    topics.send(copy, 1, [b"from elsewhere"] * 5)
    steps: list[int] = []
    report = replay(
        to,
        topics.namesrv,
        tmp_path / "ledger",
        to=copy,
        step_offsets=500,
        translate_groups=["readers"],
        spark=spark,
        on_step=lambda step: steps.append(step.messages),
    )
    assert (report.messages, report.found, report.complete, sum(steps)) == (902, 0, True, 902)
    assert len(steps) > 1
    before, after = stored(topics, topic, 3), stored(topics, copy, 3)
    after[1] = after[1][5:]
    assert [[said_by(record) for record in queue] for queue in after] == [
        [said_by(record) for record in queue] for queue in before
    ]
    assert [origins(queue) for queue in after] == [
        [(queue_id, offset) for offset in range(len(queue))] for queue_id, queue in enumerate(before)
    ]
    copied = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": copy}))
    placed = copied.committed_offsets(copied.queues(), "readers")
    assert placed[Queue(copy, topics.broker_name, 1)] == 42 + 5
    assert {of.queue_id: of.offset for of in report.translated}[1] == 47
    ledger = ReplayLedger(open_storage(tmp_path / "ledger"))
    mapping = read_table(spark, ledger.storage, ledger.mapping_files(), SENT_DDL)
    assert mapping.where("toOffset = queueOffset + if(queueId = 1, 5, 0) AND toQueue = queueId").count() == 902

    again = replay(to, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark)
    assert (again.messages, again.earlier) == (0, 902)
    with pytest.raises(ArchiveError, match="belongs to another replay: by_key differ"):
        replay(to, topics.namesrv, tmp_path / "ledger", to=copy, by_key=True, spark=spark)


@pytest.mark.parametrize("keep", [False, True])
def test_messages_of_clocks_that_were_wrong_come_back_too(
    spark: Any, topics: Topics, tmp_path: Path, keep: bool
) -> None:
    """Born and stored in the year 55969: no calendar of Python's has it."""
    copy, at_ms = topics.create(1), AT_MS * 1000
    source = Queue("orders", topics.broker_name, 0)
    for batch, at in enumerate((at_ms, AT_MS, at_ms)):
        append(ArchiveLog(tmp_path / "lake"), batch, source, batch * 2, batch * 2 + 2, at_ms=at)
    far = Selection(since_ms=at_ms, until_ms=(1 << 63) // 1000 - 1)
    lake, ledger = tmp_path / "lake", tmp_path / "ledger"
    assert replay(lake, topics.namesrv, ledger, to=copy, selection=far, dry_run=True, spark=spark).messages == 4
    done = replay(lake, topics.namesrv, ledger, to=copy, keep_born_time=keep, spark=spark)
    assert (done.messages, done.complete) == (6, True)
    [found] = stored(topics, copy, 1)
    born = [at_ms, at_ms + 1, AT_MS + 2, AT_MS + 3, at_ms + 4, at_ms + 5]
    shown = [decode_properties(record.properties_text)[REPLAY_ORIGIN].split("/")[3] for record in found]
    assert shown == [str(at) for at in born]
    if keep:
        assert [record.born_timestamp for record in found] == born


def test_with_a_rate_all_queues_go_on_together(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path
) -> None:
    copy = topics.create(3)
    report = replay(lake[1], topics.namesrv, tmp_path / "ledger", to=copy, per_second=5000.0, spark=spark)
    assert report.messages == 902
    assert report.seconds >= 902 / 5000
    after = stored(topics, copy, 3)
    assert [[offset for _, offset in origins(queue)] for queue in after] == [list(range(n)) for n in (300, 302, 300)]
    assert max(queue[0].physical_offset for queue in after) < min(queue[-1].physical_offset for queue in after)


def test_a_step_reads_of_each_file_what_it_sends(spark: Any, lake: tuple[str, Path]) -> None:
    """Spark passes over row groups by conditions on their columns, which a join does not tell it."""
    topic, to = lake
    log = ArchiveLog(to)
    ranges = [OffsetRange(Queue(topic, of.broker, of.queue_id), 7 + of.queue_id, 11) for of in log.queues()]
    frame = rows_in(read_files(spark, log, log.files()), ranges, progress="progress")
    rows = sorted((row.queueId, row.queueOffset, row.progress) for row in frame.collect())
    assert rows[:4] == [(0, 7, 0.0), (0, 8, 0.25), (0, 9, 0.5), (0, 10, 0.75)]
    assert [row[:2] for row in rows[4:]] == [(1, 8), (1, 9), (1, 10), (2, 9), (2, 10)]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThanOrEqual(queueOffset,7), LessThan(queueOffset,11)" in plan


def test_what_is_chosen_is_spread_anew_by_key(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path
) -> None:
    _, to = lake
    small = topics.create(2)
    chosen = Selection(tags=("tag0", "tag1"), where="queueId < 2 AND endsWith(cast(body AS string), '7')")
    report = replay(to, topics.namesrv, tmp_path / "one", to=small, selection=chosen, by_key=True, spark=spark)
    assert report.messages == 40  # ten of each hundred
    queues = stored(topics, small, 2)
    bodies = [[record.body for record in queue] for queue in queues]
    by_key: dict[bytes, set[int]] = {}
    for queue_id, of_queue in enumerate(bodies):
        for body in of_queue:
            by_key.setdefault(body[2:3], set()).add(queue_id)
        for source in (b"0/0", b"0/1", b"1/0", b"1/1"):
            mine = [body for body in of_queue if body.startswith(source)]
            assert mine == sorted(mine)
    assert by_key == {b"0": {0}, b"1": {1}} or by_key == {b"0": {1}, b"1": {0}}, (
        "key0 and key1 have neighbouring hashes"
    )

    keyed = replay(
        to, topics.namesrv, tmp_path / "two", to=small, selection=Selection(keys=("big",)), by_key=True, spark=spark
    )
    assert keyed.messages == 1
    nothing = Selection(since_ms=int(time.time() * 1000) + 3_600_000)
    assert (
        replay(to, topics.namesrv, tmp_path / "three", to=small, selection=nothing, by_key=True, spark=spark).messages
        == 0
    )


def test_arguments_that_do_not_fit_are_told(
    spark: Any,
    topics: Topics,
    lake: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic, to = lake
    small = topics.create(2)
    with pytest.raises(OptionError, match=rf"topic {small} has no queue for .*--by-key"):
        replay(to, topics.namesrv, tmp_path / "ledger", to=small, spark=spark)
    bad = Selection(where="nosuch = 1")
    with pytest.raises(OptionError, match="invalid predicate 'nosuch = 1'"):
        replay(to, topics.namesrv, tmp_path / "ledger", selection=bad, dry_run=True, spark=spark)
    with pytest.raises(OptionError, match="groups already consume topic"):
        replay(to, topics.namesrv, tmp_path / "ledger", translate_groups=["g"], spark=spark)
    with pytest.raises(OptionError, match="contains no archive"):
        replay(tmp_path / "none", topics.namesrv, tmp_path / "ledger", spark=spark)
    base = ["replay", "--namesrv", topics.namesrv, "--archive", str(to), "--ledger", str(tmp_path / "ledger")]
    wrong = CliRunner().invoke(command, [*base, "--topic", "other", "--to", topic])
    assert wrong.exit_code == 2
    assert "has no topic other" in wrong.output
    for way in ([], ["--dry-run"]):
        nowhere = CliRunner().invoke(command, [*base, *way, "--to", "never-made"])
        assert (nowhere.exit_code, "topic never-made does not exist" in nowhere.output) == (2, True)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    capfd.readouterr()
    shown = CliRunner().invoke(command, [*base, "--topic", topic, "--dry-run", "--where", "nosuch = 1"])
    assert (shown.exit_code, "invalid predicate 'nosuch = 1'" in shown.output) == (2, True)
    assert "Py4JJavaError" not in shown.output + "".join(capfd.readouterr())  # and not in all that Spark knows of it


def test_what_would_send_twice_or_elsewhere_is_refused(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path
) -> None:
    _, to = lake
    copy = topics.create(3)
    spark.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    spark.conf.set("spark.speculation", "true")
    try:
        with pytest.raises(OptionError, match=r"spark\.speculation runs tasks twice.*disable it"):
            replay(to, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark)
    finally:
        spark.conf.unset("spark.speculation")
        spark.conf.unset("spark.sql.legacy.setCommandRejectsSparkCoreConfs")
    ledger = ReplayLedger(open_storage(tmp_path / "begun"))
    with ledger.opened(
        ReplayJob(str(to), lake[0], topics.namesrv, copy, False, False, Selection()), "r", ArchiveLog(to)
    ) as opened:
        ledger.write_plan(opened, Plan(0, [], [TargetEnd(topics.broker_name, 0, 0)]))  # when the topic had one queue
    with pytest.raises(ArchiveError, match=r"have changed since step 0 began.*restore the topic's queues"):
        replay(to, topics.namesrv, tmp_path / "begun", to=copy, spark=spark)
    assert stored(topics, copy, 3) == [[], [], []]


def test_groups_stay_where_they_are_until_a_replay_is_at_its_end(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path
) -> None:
    topic, to = lake
    copy, stop = topics.create(3), threading.Event()
    Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic})).commit_offsets(
        "waiting", {Queue(topic, topics.broker_name, 0): 1000}
    )
    named: dict[str, Any] = {"to": copy, "translate_groups": ["waiting"], "groups_namesrv": topics.namesrv}
    named |= {"step_offsets": 300, "on_step": lambda _: stop.set(), "stop": stop}
    done = replay(to, topics.namesrv, tmp_path / "ledger", spark=spark, **named)
    assert (done.finished, done.complete) == (False, False)
    assert done.warnings == (
        "group waiting has consumed 700 messages that are not in the archive yet",
        "the groups' offsets were not set, since the replay is not complete",
    )
    copied = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": copy}))
    assert copied.committed_offsets(copied.queues(), "waiting") == {}


@pytest.mark.crash
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_job_killed_at_any_point_sends_everything_once(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, copy = topics.fill(6000, queues=3), topics.create(3)
    to, ledger = tmp_path / "lake", tmp_path / "ledger"
    archive(topics.namesrv, topic, to, tmp_path / "checkpoint", spark=spark)
    queues = [Queue(copy, topics.broker_name, number) for number in range(3)]
    cluster = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": copy}))

    def there() -> int:
        return sum(held.end for held in cluster.bounds(queues).values())

    driver = ["tests.spark.jobs.replay.replaying", topics.namesrv, str(to), str(ledger), copy]
    run_until_killed(spark, *driver, "before-commit", "0")
    steps = ReplayLedger(open_storage(ledger)).steps()
    assert len(steps) == 1
    assert there() > steps[0].sent, "step 1 is sent and not done"

    second = start_driver(*driver, "never", "400")  # its JVM is killed, too
    try:
        patience = Patience(PATIENCE_S)
        begun = there()
        while there() < begun + 100:  # in the middle of step 2
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it ended before it was killed: {second.wait(0.02)}")
            assert not patience.is_over
    finally:
        end_group(second)
    assert there() < 6000

    report = replay(to, topics.namesrv, ledger, to=copy, spark=spark, step_offsets=2000)
    assert report.found > 0
    after = stored(topics, copy, 3)
    assert [origins(queue) for queue in after] == [[(number, offset) for offset in range(2000)] for number in range(3)]
    assert [[record.body for record in queue] for queue in after] == [
        [record.body for record in queue] for queue in stored(topics, topic, 3)
    ]


def test_the_command_tells_what_it_does(
    spark: Any, topics: Topics, lake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report as JSON and as a page, progress on stderr."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    _, to = lake
    copy = topics.create(3)
    page = tmp_path / "report.html"
    run = ["replay", "--namesrv", topics.namesrv, "--archive", str(to), "--to", copy, "--report", str(page)]
    run += ["--ledger", str(tmp_path / "ledger"), "--tag", "tag2", "-o", "json"]
    done = CliRunner().invoke(command, run, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0)
    report = json.loads(done.stdout)
    assert (report["messages"], report["complete"], report["exit_code"]) == (300, True, 0)
    assert "step 0: " in done.stderr
    assert "300 messages of" in page.read_text()
    assert ("data:image/svg+xml" in page.read_text()) == (importlib.util.find_spec("matplotlib") is not None)
