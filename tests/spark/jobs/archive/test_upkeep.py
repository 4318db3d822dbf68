"""Compaction, retention and vacuum of archives: nothing lost, nothing twice, whatever is killed and whoever reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from tests.spark.lake_files import (
    AT_MS,
    HOUR_MS,
    QUEUES,
    append,
    cover,
    dies_at_its_commit,
    messages,
    stored,
    written,
    written_rows,
)

from cometmq.archive.changes import Batch
from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import DataFile, new_part_path
from cometmq.archive.leftovers import SPARED_MS
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import REMOVED_KEPT_MS, ArchiveLog, read_archive
from cometmq.spark.archives.table import FORMATS, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.upkeep import compact, expire, join_files, planned_joinings, vacuum
from cometmq.spark.records.queues import Queue
from cometmq.testing import VirtualClock

ORDERS, OTHER = QUEUES
DAY_MS = 24 * HOUR_MS
PATIENCE_S = 120


@pytest.fixture
def clock() -> VirtualClock:
    """Two hours and a half after the first message."""
    return VirtualClock(start_ms=AT_MS + 5 * HOUR_MS // 2)


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> ArchiveLog:
    """An archive in each format: six small files of one hour, one of the next, and one of the hour now."""
    log = ArchiveLog(tmp_path / "lake", TableFormat(request.param), clock=clock)
    for batch in range(3):
        append(log, 2 * batch, ORDERS, batch * 10, batch * 10 + 10)
        append(log, 2 * batch + 1, OTHER, batch * 10, batch * 10 + 10)
    append(log, 6, ORDERS, 30, 40, at_ms=AT_MS + HOUR_MS)
    append(log, 7, ORDERS, 40, 45, at_ms=AT_MS + 2 * HOUR_MS)
    return log


ALL = {ORDERS: list(range(45)), OTHER: list(range(30))}
TOTALS = [QueueTotals(*OTHER, 0, 30, 30), QueueTotals(*ORDERS, 0, 45, 45)]


def joined(log: ArchiveLog) -> None:
    """Compact without Spark."""
    for joining in planned_joinings(log.files(), 1 << 30, AT_MS + 2 * HOUR_MS):
        log.replace(joining.files, [join_files(log.storage, joining.files)])


def paths(log: ArchiveLog) -> set[str]:
    return {file.path for file in log.files()}


sizes = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=30)


@given(sizes, st.integers(1, 100))
def test_what_is_joined_are_neighbours_up_to_a_size(found: list[tuple[int, int]], target: int) -> None:
    files, reached = [], [0, 0, 0]
    for queue_id, size in found:
        queue, first = Queue("t", "b", queue_id), reached[queue_id]
        reached[queue_id] += 10
        path = new_part_path(queue, AT_MS, first, 1)
        files.append(DataFile(path, *queue, first, first + 10, 10, size, 0, 0, 0))
    planned = planned_joinings(reversed(files), target, AT_MS + HOUR_MS)
    assert planned_joinings(files, target, AT_MS + HOUR_MS - 1) == [], "the hour has not ended then"
    left = {file.path: file for file in files}
    for joining in planned:
        assert len(joining.files) > 1
        assert joining.bytes <= target
        assert len({file.queue for file in joining.files}) == 1
        assert all(one.end == two.first for one, two in pairwise(joining.files))
        for file in joining.files:
            del left[file.path]
    for queue_id in range(3):  # no two neighbours are left that would fit
        rest = [of for of in files if of.queue_id == queue_id and of.path in left]
        pairs = [(one, two) for one, two in pairwise(rest) if one.end == two.first]
        assert all(one.bytes + two.bytes > target for one, two in pairs)


def test_files_are_joined_and_nothing_else_changes(log: ArchiveLog) -> None:
    before = {file.path: file for file in log.files()}
    joined(log)
    after = log.files()
    assert len(after) == len(before) - 6 + 2
    assert stored(Path(log.url)) == ALL
    assert log.queues() == TOTALS
    assert (log.last_batch_of("q"), log.holds("q", 7), log.holds("q", 8)) == (7, True, False)
    new = [file for file in after if file.path not in before]
    assert {(file.queue, file.first, file.end, file.rows) for file in new} == {(ORDERS, 0, 30, 30), (OTHER, 0, 30, 30)}

    for file in new:
        assert pq.ParquetFile(Path(log.url) / file.path).read() == pa.Table.from_batches(
            [messages(file.queue, range(30))]
        )
    assert not append(log, 7, ORDERS, 40, 45, at_ms=AT_MS + 2 * HOUR_MS), "the batch is known"
    assert append(log, 8, ORDERS, 45, 46, at_ms=AT_MS + 2 * HOUR_MS)
    joined(log)  # of what is left there is nothing to join
    assert len(log.files()) == len(after) + 1


def test_files_that_are_not_the_same_messages_are_refused(log: ArchiveLog) -> None:
    old = [file for file in log.files() if file.queue == OTHER]
    with pytest.raises(ArchiveError, match="nothing was changed"):
        log.replace(old, written(Path(log.url), OTHER, 0, 29))
    made = join_files(log.storage, old)
    log.replace(old, [made])
    with pytest.raises(ArchiveError, match="3 files were removed from the archive"):
        log.replace(old, [join_files(log.storage, old)])
    short = [old[0], old[2]]
    (Path(log.url) / old[1].path).write_bytes((Path(log.url) / old[0].path).read_bytes())
    with pytest.raises(ArchiveError, match="does not hold the 10 messages"):
        join_files(log.storage, [short[0], old[1], short[1]])


@pytest.mark.parametrize("after", [False, True])
def test_a_compaction_that_dies_at_its_commit(log: ArchiveLog, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_at_its_commit(log, monkeypatch, after)
    with pytest.raises(KeyboardInterrupt):
        joined(log)
    monkeypatch.undo()
    assert stored(Path(log.url)) == ALL
    assert log.queues() == TOTALS
    joined(log)
    assert stored(Path(log.url)) == ALL
    assert len(log.files()) == 4
    log.sweep(keep_ms=0)
    assert stored(Path(log.url)) == ALL


@pytest.mark.crash
@pytest.mark.timeout(3 * PATIENCE_S)
@pytest.mark.parametrize("name", FORMATS)
def test_a_compaction_killed_at_every_step_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    log = ArchiveLog(root, TableFormat(name))
    for batch in range(6):
        append(log, batch, QUEUES[batch % 2], batch // 2 * 10, batch // 2 * 10 + 10)
    command = [sys.executable, "-m", "tests.spark.lake_files", str(root), name, "compact"]
    for point in ("before", "after", "never"):
        work = subprocess.run([*command, point], check=False)
        assert work.returncode == (0 if point == "never" else -signal.SIGKILL)
        assert stored(root) == {queue: list(range(30)) for queue in QUEUES}
    assert len(log.files()) == 2
    assert append(log, 6, ORDERS, 30, 31)


def test_old_hours_leave_and_new_ones_stay(log: ArchiveLog, clock: VirtualClock) -> None:
    before = log.files()
    dry = expire(Path(log.url), keep_ms=HOUR_MS, dry_run=True, clock=clock)
    assert (dry.rows, dry.files_before, log.files()) == (60, 6, before)
    with pytest.raises(OptionError, match="keep at least one hour"):
        expire(Path(log.url), keep_ms=HOUR_MS - 1, clock=clock)

    only = expire(Path(log.url), keep_ms=HOUR_MS, topics=[ORDERS.topic], clock=clock)
    assert only.rows == 30
    done = expire(Path(log.url), keep_ms=HOUR_MS, clock=clock)
    assert (done.rows, done.hours[0].topic, done.hours[0].hour) == (30, OTHER.topic, "2024-01-01-00")
    assert stored(Path(log.url)) == {ORDERS: list(range(30, 45))}, "the hour before now is within the keep window"
    assert log.queues() == [QueueTotals(*OTHER, 30, 30, 0), QueueTotals(*ORDERS, 30, 45, 15)]
    assert expire(Path(log.url), keep_ms=HOUR_MS, clock=clock).files_before == 0

    assert not append(log, 7, ORDERS, 40, 45, at_ms=AT_MS + 2 * HOUR_MS), "the batch is known"
    assert append(log, 8, OTHER, 30, 33, at_ms=AT_MS + 2 * HOUR_MS)
    with pytest.raises(ArchiveError, match="archived up to offset 33"):
        append(log, 0, OTHER, 0, 10, query="again")
    assert log.queues()[0] == QueueTotals(*OTHER, 30, 33, 3)


def test_hours_that_interleave_leave_a_trace_of_what_was_taken_out(tmp_path: Path, clock: VirtualClock) -> None:
    """An hour goes that has offsets between those of a later one; the totals say up to where, and before when."""
    log = ArchiveLog(tmp_path / "lake", clock=clock)
    hours = ((range(3), AT_MS), (range(3, 5), AT_MS + 2 * HOUR_MS), (range(5, 7), AT_MS))
    files = written_rows(tmp_path / "lake", ORDERS, [messages(ORDERS, *hour) for hour in hours])
    log.append(Batch("q", 0, [cover(ORDERS, 0, 7)], files))
    append(log, 1, ORDERS, 7, 9, at_ms=AT_MS + 2 * HOUR_MS)
    assert expire(Path(log.url), keep_ms=HOUR_MS, clock=clock).rows == 5
    assert log.queues() == [QueueTotals(*ORDERS, 3, 9, 4, expired_to=7, expired_before_ms=AT_MS + HOUR_MS)]
    append(log, 2, ORDERS, 9, 10, at_ms=AT_MS + 4 * HOUR_MS)
    clock.advance(2 * HOUR_MS / 1000)
    assert expire(Path(log.url), keep_ms=HOUR_MS, clock=clock).rows == 4
    assert log.queues() == [QueueTotals(*ORDERS, 9, 10, 1)], "what is left has no holes any more"


def test_a_vacuum_of_a_delta_table_does_not_reach_behind_its_log(tmp_path: Path, clock: VirtualClock) -> None:
    from deltalake import DeltaTable

    log = ArchiveLog(tmp_path / "lake", TableFormat("delta"), clock=clock)
    for batch in range(2):
        append(log, batch, ORDERS, batch * 10, batch * 10 + 10)
    old = paths(log)
    joined(log)
    clock.advance(40 * DAY_MS / 1000)
    append(log, 2, ORDERS, 20, 30)
    assert vacuum(Path(log.url), keep_ms=50 * DAY_MS, clock=clock).files_before == 0, "the log is whole"
    DeltaTable(str(Path(log.url))).create_checkpoint()
    aged = time.time() - 40 * DAY_MS / 1000
    for path in (Path(log.url) / "_delta_log").glob("*.json"):
        os.utime(path, (aged, aged))
    DeltaTable(str(Path(log.url))).cleanup_metadata()
    assert len(list((Path(log.url) / "_delta_log").glob("*.json"))) == 1
    with pytest.raises(ArchiveError, match=r"begins at 2024-02-10T02:30:00\.000Z.*shorter --keep"):
        vacuum(Path(log.url), keep_ms=50 * DAY_MS, clock=clock)
    assert all((Path(log.url) / path).exists() for path in old)
    assert append(log, 3, ORDERS, 30, 40)
    assert vacuum(Path(log.url), keep_ms=0, clock=clock).files_before == 2
    assert stored(Path(log.url)) == {ORDERS: list(range(40))}


def test_a_vacuum_keeps_what_readers_may_still_read(log: ArchiveLog, clock: VirtualClock) -> None:
    before = log.files()
    joined(log)
    [orphan] = written(Path(log.url), Queue("orders", "broker-z", 0), 0, 5)
    dry = vacuum(Path(log.url), dry_run=True, clock=clock)
    assert (dry.files_before, dry.bytes_before) == (1, orphan.bytes)
    assert (Path(log.url) / orphan.path).exists()
    assert vacuum(Path(log.url), clock=clock).files_before == 1
    assert all((Path(log.url) / file.path).exists() for file in before), "for a week"

    clock.advance((REMOVED_KEPT_MS + 1) / 1000)
    assert vacuum(Path(log.url), clock=clock).files_before == 6
    assert {str(path.relative_to(Path(log.url))) for path in Path(log.url).glob("topic=*/hour=*/*")} == paths(log)
    assert stored(Path(log.url)) == ALL
    assert append(log, 8, ORDERS, 45, 46)
    assert stored(Path(log.url)) == ALL | {ORDERS: list(range(46))}


def test_a_vacuum_beside_a_job_leaves_its_files(log: ArchiveLog, clock: VirtualClock) -> None:
    with log.locked():
        epoch = log.writer.epoch
        [young] = written_rows(Path(log.url), ORDERS, [messages(ORDERS, range(100, 105))], epoch)
        [old] = written_rows(Path(log.url), ORDERS, [messages(ORDERS, range(200, 205))], epoch)
        now_s = clock.now_ms() / 1000
        os.utime(Path(log.url) / young.path, (now_s, now_s))
        aged_s = now_s - SPARED_MS / 1000 - 1
        os.utime(Path(log.url) / old.path, (aged_s, aged_s))
        assert log.sweep() == [(old.path, old.bytes)]
        with log.locked_for_upkeep(), pytest.raises(ArchiveError, match="another job is writing"):
            log.sweep()
    assert log.sweep() == [(young.path, young.bytes)]


def test_a_directory_that_holds_no_archive_is_left_alone(tmp_path: Path) -> None:
    """Files of a table that lost its log, or of somebody else, are no orphans."""
    written(tmp_path, ORDERS, 0, 5)
    works: list[Callable[[], object]] = [
        lambda: vacuum(tmp_path),
        lambda: compact(tmp_path),
        lambda: expire(tmp_path, keep_ms=DAY_MS),
    ]
    for work in works:
        with pytest.raises(OptionError, match="contains no archive"):
            work()
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_versions_of_an_iceberg_table_that_nobody_reads_are_let_go(tmp_path: Path, clock: VirtualClock) -> None:
    from pyiceberg.catalog import load_catalog

    log = ArchiveLog(tmp_path / "lake", TableFormat("iceberg"), clock=clock)
    for batch in range(3):
        append(log, batch, ORDERS, batch * 10, batch * 10 + 10)
        clock.advance(DAY_MS / 1000)
    own = {"type": "sql", "uri": f"sqlite:///{Path(log.url)}/_catalog.db", "warehouse": f"file://{Path(log.url)}"}
    catalog = load_catalog("archive", **own)
    vacuum(Path(log.url), keep_ms=3 * DAY_MS // 2, clock=clock)  # the second was current until a day ago
    assert len(catalog.load_table("cometmq.archive").metadata.snapshots) == 2
    assert catalog.load_table("cometmq.archive").scan().to_arrow().num_rows == 30


@pytest.mark.spark
def test_the_job_joins_on_executors(spark: Any, tmp_path: Path, clock: VirtualClock) -> None:
    log = ArchiveLog(tmp_path / "lake", TableFormat("delta"), clock=clock)
    for batch in range(4):
        append(log, batch, QUEUES[batch % 2], batch // 2 * 10, batch // 2 * 10 + 10)
    seen: list[int] = []
    done = compact(Path(log.url), spark=spark, clock=clock, on_step=lambda work: seen.append(work.files))
    assert (done.files_before, done.files_after, done.rows, done.commits, seen) == (4, 2, 40, 1, [4])
    assert stored(Path(log.url)) == {queue: list(range(20)) for queue in QUEUES}
    assert sorted(row.queueOffset for row in read_archive(spark, Path(log.url)).collect()) == sorted([*range(20)] * 2)
    again = compact(Path(log.url), spark=spark, clock=clock)
    assert (again.files_before, again.commits) == (0, 0)


def test_the_commands_say_what_they_do(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path / "lake")
    for batch in range(2):
        append(log, batch, ORDERS, batch * 10, batch * 10 + 10)
    written(Path(log.url), ORDERS, 50, 55)
    place, page = str(Path(log.url)), tmp_path / "report.html"

    def run(*words: str) -> Any:
        done = CliRunner().invoke(command, ["archive", *words], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, 0), done.output
        return done.stdout

    text = run("compact", place, "--dry-run", "--report", str(page))
    assert "2 files" in text
    assert "with 20 messages would be joined into 1" in text
    assert "2024-01-01-00" in page.read_text()
    seen = json.loads(run("expire", place, "--keep", "90d", "--dry-run", "-o", "json"))
    assert (seen["rows"], seen["dry_run"], seen["exit_code"], len(log.files())) == (20, True, 0, 2)
    assert "1 file " in run("vacuum", place, "--keep", "12h")
    assert "20 messages taken out of the archive" in run("expire", place, "--keep", "90d")
    assert log.files() == []
    wrong = CliRunner().invoke(command, ["archive", "expire", place, "--keep", "5m"])
    assert (wrong.exit_code, "keep at least one hour" in wrong.output) == (2, True)
    for work in (["expire", place, "--keep", "90d"], ["compact", place]):
        typo = CliRunner().invoke(command, ["archive", *work, "--topic", "order"])
        assert (typo.exit_code, "has no topic order (did you mean orders?)" in typo.output) == (2, True), typo.output
    nothing = CliRunner().invoke(command, ["archive", "--topic", "orders"])
    assert (nothing.exit_code, "--to" in nothing.output) == (2, True)
