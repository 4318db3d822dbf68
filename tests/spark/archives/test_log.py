"""The log of an archive: whole commits in every format, no overlap, one writer, sweeps. No Spark, no broker."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.lake_files import (
    AT_MS,
    BATCH,
    HOUR_MS,
    QUEUES,
    append,
    cover,
    dies_at_its_commit,
    messages,
    stored,
    written,
)

from cometmq.archive.changes import Batch
from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import hour_ended_ms
from cometmq.errors import pip_install
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog, read_archive
from cometmq.spark.archives.table import FORMATS, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.upkeep import join_files, planned_joinings
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.queues import Queue
from cometmq.storage.local import LocalStorage
from cometmq.testing import VirtualClock

ORDERS = Queue("orders", "broker-a", 0)
OTHER = Queue("orders", "broker-a", 1)
PATIENCE_S = 120


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveLog:
    """A new archive, in each format."""
    return ArchiveLog(tmp_path / "lake", TableFormat(request.param), clock=VirtualClock(start_ms=1000))


@pytest.fixture
def parquet(tmp_path: Path) -> ArchiveLog:
    """A new archive of Parquet files alone."""
    return ArchiveLog(tmp_path / "lake", clock=VirtualClock(start_ms=1000))


def sequence_of(log: ArchiveLog) -> int:
    last = log.last()
    return -1 if last is None else last.sequence


def test_commits_add_up(log: ArchiveLog) -> None:
    assert log.last() is None
    assert append(log, 0, ORDERS, 5, 10)
    assert append(log, 1, OTHER, 0, 3)
    assert append(log, 2, ORDERS, 10, 11)
    assert log.queues() == [QueueTotals(*ORDERS, 5, 11, 6), QueueTotals(*OTHER, 0, 3, 3)]
    assert log.next_offsets() == {ORDERS: 11, OTHER: 3}
    assert {file.path.rpartition("/")[0] for file in log.files()} == {"topic=orders/hour=2024-01-01-00"}
    assert sorted(file.path.rpartition("/")[2].rpartition("-")[0] for file in log.files()) == [
        "part-broker-a-0-00000000000000000005-e1",
        "part-broker-a-0-00000000000000000010-e1",
        "part-broker-a-1-00000000000000000000-e1",
    ]
    last = log.last()
    assert last is not None
    assert (last.batch_id, last.committed_ms) == (2, 1000)


def test_a_batch_is_committed_once(log: ArchiveLog) -> None:
    assert append(log, 0, ORDERS, 0, 10)
    assert log.holds("q", 0)
    assert not append(log, 0, ORDERS, 0, 10)
    assert log.queues() == [QueueTotals(*ORDERS, 0, 10, 10)]


def test_what_is_archived_cannot_be_added_by_another_query(log: ArchiveLog) -> None:
    append(log, 0, ORDERS, 0, 10)
    with pytest.raises(ArchiveError, match="archived up to offset 10, but this batch begins at 9"):
        append(log, 0, ORDERS, 9, 12, query="another")
    assert log.queues() == [QueueTotals(*ORDERS, 0, 10, 10)]


def test_pieces_of_a_queue_are_one_range(log: ArchiveLog) -> None:
    files = [*written(Path(log.url), ORDERS, 0, 5), *written(Path(log.url), ORDERS, 5, 9)]
    commit = log.append(Batch("q", 0, [cover(ORDERS, 5, 9), cover(ORDERS, 0, 5)], files))
    assert commit is not None
    assert commit.covered == [cover(ORDERS, 0, 9)]
    assert commit.gaps == []


def test_what_was_skipped_is_remembered(log: ArchiveLog) -> None:
    append(log, 0, ORDERS, 0, 5)
    files = written(Path(log.url), ORDERS, 8, 10)
    lost = [cover(ORDERS, 11, 12), cover(ORDERS, 10, 11)]
    commit = log.append(Batch("q", 1, [cover(ORDERS, 8, 12)], files, lost))
    assert commit is not None
    assert commit.gaps == ["orders@broker-a:0 [5, 8)", "orders@broker-a:0 [10, 12)"]


def test_a_file_that_the_driver_cannot_see_is_refused(log: ArchiveLog) -> None:
    [file] = written(Path(log.url), ORDERS, 0, 5)
    (Path(log.url) / file.path).unlink()
    with pytest.raises(ArchiveError, match="use a directory that driver and executors share"):
        log.append(Batch("q", 0, [cover(ORDERS, 0, 5)], [file]))


def test_a_commit_that_did_not_get_its_name_is_none(parquet: ArchiveLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = parquet
    append(log, 0, ORDERS, 0, 5)
    files = written(Path(log.url), ORDERS, 5, 9)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", crash)
    with pytest.raises(KeyboardInterrupt):
        log.append(Batch("q", 1, [cover(ORDERS, 5, 9)], files))
    monkeypatch.undo()
    assert not log.holds("q", 1)
    assert append(log, 1, ORDERS, 5, 9)


def test_a_task_that_outlives_its_repetition_touches_nothing_that_is_committed(log: ArchiveLog) -> None:
    """Its rows are not the same any more, and it ends when the files of its repetition are committed."""
    with Uploads(log.storage, 1) as uploads:
        zombie = QueueWriter(uploads, ORDERS, arrow_schema(ARCHIVE_COLUMNS))
        zombie.add(messages(ORDERS, range(5)))
        append(log, 0, ORDERS, 0, 10)
        [committed] = log.files()
        content = (Path(log.url) / committed.path).read_bytes()
        zombie.add(messages(ORDERS, range(5, 10), AT_MS + 1))
        [late] = zombie.close()
    assert (Path(log.url) / committed.path).read_bytes() == content
    assert append(log, 1, ORDERS, 10, 12)
    assert (Path(log.url) / committed.path).read_bytes() == content
    assert stored(Path(log.url)) == {ORDERS: list(range(12))}
    assert log.sweep() == [(late.path, late.bytes)]


def test_a_batch_that_is_known_leaves_the_files_of_its_first_time(log: ArchiveLog) -> None:
    append(log, 0, ORDERS, 0, 10)
    content = {file.path: (Path(log.url) / file.path).read_bytes() for file in log.files()}
    assert log.append(Batch("q", 0, [cover(ORDERS, 0, 10)], written(Path(log.url), ORDERS, 0, 10, AT_MS + 1))) is None
    with pytest.raises(ArchiveError, match="but this batch begins at"):
        log.append(Batch("another", 0, [cover(ORDERS, 0, 10)], written(Path(log.url), ORDERS, 0, 10, AT_MS + 1)))
    assert {file.path: (Path(log.url) / file.path).read_bytes() for file in log.files()} == content


def test_a_damaged_commit_is_named(parquet: ArchiveLog) -> None:
    log = parquet
    append(log, 0, ORDERS, 0, 5)
    (Path(log.url) / "_commits" / f"{0:020d}.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"00000000000000000000\.json is damaged"):
        ArchiveLog(log.url).last()


def test_a_sweep_deletes_only_what_no_commit_names(log: ArchiveLog) -> None:
    append(log, 0, ORDERS, 0, 5)
    [orphan] = written(Path(log.url), ORDERS, 5, 6)
    aside = Path(log.url) / f"topic=orders/hour=2024-01-01-00/.part.parquet.{'a' * 32}.tmp"
    aside.write_bytes(b"what a killed task leaves")
    expected = [str(aside.relative_to(Path(log.url))), orphan.path]
    assert [path for path, _ in log.sweep(dry_run=True)] == expected
    assert (Path(log.url) / orphan.path).exists()
    assert [path for path, _ in log.sweep()] == expected
    assert log.sweep() == []
    assert (Path(log.url) / log.files()[0].path).exists()


def test_files_are_told_as_they_were_written(log: ArchiveLog) -> None:
    files = written(Path(log.url), QUEUES[1], 0, 10, AT_MS + HOUR_MS - 5)
    assert len(files) == 2, "an hour ends among them"
    commit = log.append(Batch("q", 0, [cover(QUEUES[1], 0, 10)], files))
    assert commit is not None
    assert sorted(log.files(), key=lambda file: file.path) == sorted(commit.files, key=lambda file: file.path)
    assert {file.committed_ms for file in commit.files} == {1000}


def test_a_batch_without_messages_is_committed_too(log: ArchiveLog) -> None:
    assert log.append(Batch("q", 0, [cover(ORDERS, 0, 5)], [])) is not None
    assert log.append(Batch("q", 1, [cover(ORDERS, 5, 9)], [])) is not None
    assert (log.queues(), log.files()) == ([QueueTotals(*ORDERS, 0, 9, 0)], [])
    assert log.last_batch_of("q") == 1
    assert log.last_batch_of("other") is None


def test_the_format_is_found_and_another_is_refused(log: ArchiveLog) -> None:
    append(log, 0, ORDERS, 0, 5)
    assert ArchiveLog(Path(log.url)).queues() == log.queues()
    for name in FORMATS:
        if name != log.format:
            with pytest.raises(ArchiveError, match=f"holds an archive of format {log.format}, not {name}"):
                ArchiveLog(Path(log.url), TableFormat(name))
    with pytest.raises(OptionError, match="unknown archive format 'orc'"):
        ArchiveLog(Path(log.url), TableFormat("orc"))


def test_reading_what_is_no_archive_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    no_spark: Any = None
    for place in (tmp_path, tmp_path / "typo"):
        with pytest.raises(OptionError, match=f"{place} contains no archive"):
            read_archive(no_spark, place)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(("name", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog")])
def test_a_package_that_is_missing_is_named(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    told = f"{package.partition('.')[0]} is not installed ({pip_install(name)})"
    with pytest.raises(ArchiveError, match=re.escape(told)):
        ArchiveLog(tmp_path, TableFormat(name))


def test_a_table_that_somebody_else_has_rewritten_is_refused(tmp_path: Path) -> None:
    """Delta's own compaction makes files that say nothing of queues; how far the archive is stays known."""
    from deltalake import DeltaTable

    log = ArchiveLog(tmp_path / "lake", TableFormat("delta"))
    append(log, 0, ORDERS, 0, 5)
    append(log, 1, ORDERS, 5, 9)
    assert DeltaTable(str(Path(log.url))).optimize.compact()["numFilesRemoved"] == 2
    assert log.queues() == [QueueTotals(*ORDERS, 0, 9, 9)]
    with pytest.raises(ArchiveError, match="which an archive job did not write"):
        log.files()


def test_a_catalog_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that pyiceberg is configured for has the table, and the directory remembers which."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__SITE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SITE__URI", f"sqlite:///{tmp_path}/site.db")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # which it reads when it is imported
    wanted = TableFormat("iceberg", "site", "lake.orders")
    log = ArchiveLog(tmp_path / "lake", wanted)
    append(log, 0, ORDERS, 0, 30)
    assert not (Path(log.url) / "_catalog.db").exists()
    assert pyiceberg.catalog.load_catalog("site").load_table("lake.orders").scan().to_arrow().num_rows == 30
    assert (
        ArchiveLog(Path(log.url)).queues()
        == ArchiveLog(Path(log.url), wanted).queues()
        == [QueueTotals(*ORDERS, 0, 30, 30)]
    )
    with pytest.raises(ArchiveError, match=r"is table lake\.orders of site, not lake\.other of site"):
        ArchiveLog(Path(log.url), TableFormat("iceberg", "site", "lake.other"))
    with pytest.raises(ArchiveError, match=r"has a table lake\.orders already"):
        append(ArchiveLog(tmp_path / "second", wanted), 0, ORDERS, 0, 5)
    with pytest.raises(ArchiveError, match="has no catalog nosuch"):
        append(ArchiveLog(tmp_path / "third", TableFormat("iceberg", "nosuch", "a.b")), 0, ORDERS, 0, 5)
    with pytest.raises(OptionError, match="catalog site needs the name of a table"):
        ArchiveLog(tmp_path / "third", TableFormat("iceberg", "site"))
    with pytest.raises(OptionError, match="not for delta"):
        ArchiveLog(tmp_path / "third", TableFormat("delta", table="a.b"))


YEAR_10000_MS = 253_402_300_800_000


@pytest.mark.parametrize("at_ms", [YEAR_10000_MS - 5, AT_MS * 1000, (1 << 63) // 1000 - 20, -HOUR_MS // 2])
def test_times_that_no_calendar_has_are_archived_as_any_other(log: ArchiveLog, at_ms: int) -> None:
    """Clocks of brokers and producers may say anything; their times are stored as they are."""
    append(log, 0, ORDERS, 0, 9, at_ms=at_ms)
    append(log, 1, ORDERS, 9, 12)
    append(log, 2, ORDERS, 12, 15, at_ms=at_ms)
    said = [at_ms + number for number in (*range(9), 12, 13, 14)] + [AT_MS + number for number in (9, 10, 11)]
    for compacted in (False, True):
        if compacted:
            for joining in planned_joinings(log.files(), 1 << 30, 1 << 62):
                log.replace(joining.files, [join_files(log.storage, joining.files)])
        times = {file: times_in(Path(log.url) / file.path) for file in log.files()}
        assert sorted(at for of in times.values() for at in of) == sorted(said)
        assert stored(Path(log.url)) == {ORDERS: list(range(15))}
        for file, of in times.items():
            assert file.min_store_ms <= min(of) <= max(of) <= file.max_store_ms < hour_ended_ms(file.path)


def times_in(path: Path) -> list[int]:
    """The store times in a data file, ms since 1970."""
    return [us // 1000 for us in pq.read_table(path, columns=["storeTimestamp"])[0].cast(pa.int64()).to_pylist()]


def _begin_an_archive(root: Path, table: str, all_ready: Any) -> None:
    log = ArchiveLog(root, TableFormat("iceberg", "site", table))
    all_ready.wait(PATIENCE_S)
    append(log, 0, ORDERS, 0, 5)


def test_archives_that_begin_at_once_share_a_catalog_that_is_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a process of its own: all find the catalog missing, and one is the first to make it."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__SITE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SITE__URI", f"sqlite:///{tmp_path}/site.db")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    apart = multiprocessing.get_context("spawn")
    all_ready = apart.Barrier(3)
    roots = [tmp_path / f"lake-{job}" for job in range(3)]
    jobs = [
        apart.Process(target=_begin_an_archive, args=(root, f"lake.t{job}", all_ready))
        for job, root in enumerate(roots)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(PATIENCE_S)
    assert [job.exitcode for job in jobs] == [0, 0, 0]
    assert [sum(of.rows for of in ArchiveLog(root).queues()) for root in roots] == [5, 5, 5]


def test_an_iceberg_archive_is_there_when_its_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks while it is made sees none; one that nobody could see yet is gone on with after a kill."""
    root = tmp_path / "lake"
    log = ArchiveLog(root, TableFormat("iceberg"))

    def killed(*_: object) -> None:
        assert ArchiveLog(root).last() is None
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            append(log, 0, ORDERS, 0, 5)
    assert ArchiveLog(root).last() is None
    append(ArchiveLog(root, TableFormat("iceberg")), 0, ORDERS, 0, 5)
    assert sum(of.rows for of in ArchiveLog(root).queues()) == 5


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_an_iceberg_table_that_is_not_where_it_was_made_says_so(how: str, tmp_path: Path) -> None:
    """A copy must never write into the table that it was copied from."""
    made, there = tmp_path / "lake", tmp_path / "elsewhere"
    append(ArchiveLog(made, TableFormat("iceberg")), 0, ORDERS, 0, 5)
    shutil.copytree(made, there)
    if how == "moved":
        shutil.rmtree(made)
    with pytest.raises(ArchiveError, match=r"does not belong to .*elsewhere: .*move the directory back to where it"):
        append(ArchiveLog(there), 1, ORDERS, 5, 9)
    if how == "moved":
        made.symlink_to(there)
        assert append(ArchiveLog(made), 1, ORDERS, 5, 9)
        assert stored(made) == {ORDERS: list(range(9))}


@pytest.mark.parametrize("after", [False, True])
def test_a_writer_that_dies_at_the_commit(log: ArchiveLog, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the transaction nothing is there; behind it a repeated batch is known."""
    append(log, 0, ORDERS, 0, 5)
    dies_at_its_commit(log, monkeypatch, after)
    with pytest.raises(KeyboardInterrupt):
        append(log, 1, ORDERS, 5, 9)
    monkeypatch.undo()
    assert sum(file.rows for file in log.files()) == (9 if after else 5)
    again = ArchiveLog(Path(log.url))
    assert append(again, 1, ORDERS, 5, 9) is not after
    assert again.queues() == [QueueTotals(*ORDERS, 0, 9, 9)]
    assert stored(Path(log.url)) == {ORDERS: list(range(9))}


@pytest.mark.crash
@pytest.mark.timeout(3 * PATIENCE_S)
@pytest.mark.parametrize("name", FORMATS)
def test_a_writer_killed_at_every_step_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    batches = 6
    root = tmp_path / "lake"
    command = [sys.executable, "-m", "tests.spark.lake_files", str(root), name, str(batches)]
    for point in ("writing", "before", "after", "never"):
        writer = subprocess.run([*command, point], check=False)
        assert writer.returncode == (0 if point == "never" else -signal.SIGKILL)
        assert stored(root)[QUEUES[0]] == list(range(len(stored(root)[QUEUES[1]]))), "whole batches"
    assert stored(root) == {queue: list(range(batches * BATCH)) for queue in QUEUES}
    log = ArchiveLog(root)
    assert log.queues() == [QueueTotals(*queue, 0, batches * BATCH, batches * BATCH) for queue in sorted(QUEUES)]
    log.sweep()
    assert stored(root) == {queue: list(range(batches * BATCH)) for queue in QUEUES}


def test_one_writer_at_a_time_and_a_killed_one_leaves_no_lock(parquet: ArchiveLog) -> None:
    log = parquet
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom cometmq.spark.archives.log import ArchiveLog\n"
            f"with ArchiveLog({str(Path(log.url))!r}).locked():\n    print('held', flush=True)\n    sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ArchiveError, match="another job is writing"), log.locked():
            pass
        holder.kill()
        holder.wait()
        with log.locked():
            pass
    finally:
        holder.kill()
        holder.communicate()
