"""The archive made from a store's files: the same as from its broker, whole after crashes, honest about damage."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.spark.lake_files import opened
from tests.spark.store_files import damage, rows_of, write_store

from cometmq.archive.changes import Batch
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.files import Uploads
from cometmq.spark.archives.log import ArchiveLog, read_archive
from cometmq.spark.errors import ArchiveError, OptionError, SparkSourceError
from cometmq.spark.jobs.archive import from_store as job
from cometmq.spark.jobs.archive.from_store import archive_store, write_split
from cometmq.spark.records.queues import Queue
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.reader import StoreScan
from cometmq.spark.store.scan import splits
from cometmq.storage import StorageError, open_storage

pytestmark = pytest.mark.spark


def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SPLITS_IN_COMMIT", 2)


def test_every_message_of_the_store_is_archived_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    write_store(tmp_path / "store", 900, body=lambda number: b"%0100d" % number, segment=1 << 16)
    done = archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    assert (done.rows, done.total_rows, done.complete) == (900, 900, True)
    assert done.batches > 1
    frame = read_archive(spark, tmp_path / "lake")
    bodies = {bytes(row.body) for row in frame.select("body").collect()}
    assert bodies == {b"%0100d" % number for number in range(900)}
    assert {row.brokerName for row in frame.select("brokerName").distinct().collect()} == {"b"}
    again = archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    assert (again.rows, again.total_rows) == (0, 900)


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_died_is_gone_on_with(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    small_stretches(monkeypatch)
    write_store(tmp_path / "store", 900, body=lambda number: b"%0100d" % number, segment=1 << 16)
    append = ArchiveLog.append

    def dying(self: ArchiveLog, added: Batch) -> Any:
        commit = append(self, added) if after or added.batch_id == 0 else None
        if added.batch_id == 1:
            raise ConnectionAbortedError
        return commit

    monkeypatch.setattr(ArchiveLog, "append", dying)
    with pytest.raises(ConnectionAbortedError):
        archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    monkeypatch.setattr(ArchiveLog, "append", append)
    before = ArchiveLog(tmp_path / "lake").queues()
    done = archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    assert done.rows == 900 - sum(queue.rows for queue in before) < 900
    assert read_archive(spark, tmp_path / "lake").select("queueId", "queueOffset").distinct().count() == 900


def test_where_only_the_log_was_saved_it_tells_what_topics_there_are(spark: Any, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 9, body=lambda number: b"%d" % number)
    shutil.rmtree(tmp_path / "store" / "consumequeue")

    def archived(topic: str, *, dry_run: bool) -> int:
        store, lake = tmp_path / "store", tmp_path / "lake"
        return archive_store(store, lake, broker_name="b", topics=topic, dry_run=dry_run, spark=spark).rows

    for dry_run in (True, False):
        with pytest.raises(OptionError, match="holds no message of topic no-such"):
            archived("no-such", dry_run=dry_run)
        assert archived("T", dry_run=dry_run) == 9
        assert archived("T", dry_run=dry_run) == (9 if dry_run else 0)


def test_damage_is_set_aside_and_its_gap_is_told(spark: Any, tmp_path: Path) -> None:
    offsets = write_store(tmp_path / "store", 60, body=lambda number: b"%0100d" % number)
    damage(tmp_path / "store", offsets[31] + 100, b"\xff")
    with pytest.raises(Exception, match="badRecordsPath"):
        archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    aside = {"badRecordsPath": str(tmp_path / "bad")}
    done = archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", options=aside, spark=spark)
    assert (done.rows, done.complete) == (59, False)
    assert done.warnings == ("messages T@b:1 [10, 11) were gone before they were read",)


def test_two_lives_of_a_topic_are_not_mixed(tmp_path: Path) -> None:
    write_store(tmp_path / "a", 9, body=lambda number: b"a")
    options = parse_store_options({"path": str(tmp_path / "a"), "brokerName": "b", "useConsumeQueue": "false"})
    archived = {Queue("T", "b", 0): 2}
    [split] = splits(options)
    covered = [
        made.covered for made in write_split(options, split, opened(tmp_path / "lake"), archived) if made.covered
    ]
    assert [(part.queue_id, part.first, part.end) for part in covered] == [(0, 2, 3), (1, 0, 3), (2, 0, 3)]
    by_queue = next(iter(StoreScan(options).records(split))).by_queue()
    twice = {Queue(topic, "b", queue_id): [records, records] for topic, queue_id, records in by_queue}
    with (
        Uploads(open_storage(tmp_path / "other"), 1) as uploads,
        pytest.raises(ArchiveError, match="deleted topic"),
    ):
        list(job._write(options, twice, uploads))


def test_what_is_decoded_at_a_time_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_store(tmp_path / "store", 90, body=lambda number: b"%0100d" % number)
    options = parse_store_options({"path": str(tmp_path / "store"), "brokerName": "b"})
    [split] = splits(options)

    def archived(name: str) -> list[Any]:
        made = list(write_split(options, split, opened(tmp_path / name), {}))
        assert [part.covered.end for part in made if part.covered] == [30, 30, 30]
        return [pq.read_table(tmp_path / name / part.file.path).to_pylist() for part in made if part.file]

    whole = archived("whole")
    monkeypatch.setattr(job, "_DECODED_BYTES", 1000)
    assert archived("portions") == whole
    assert sum(map(len, whole)) == 90


def test_nothing_is_told_before_every_file_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: set[int]
) -> None:
    write_store(tmp_path / "store", 90, body=lambda number: b"%0100d" % number)
    options = parse_store_options({"path": str(tmp_path / "store"), "brokerName": "b"})
    [split] = splits(options)
    made = write_split(options, split, opened(tmp_path / "lake"), {})
    next(made)
    files = [path.stat().st_ino for path in (tmp_path / "lake").rglob("*.parquet")]
    assert len(files) == 3
    assert flushed >= set(files)

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageError, match="input/output"):
        next(write_split(options, split, opened(tmp_path / "lake"), {}))


def test_the_command_reads_a_store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    write_store(tmp_path / "store", 30, body=lambda number: b"x")
    words = ["archive", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "lake"), "-o", "json"]
    assert CliRunner().invoke(command, words).exit_code == 2  # whose store is it?

    def run(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(command, [*words, "--broker-name", "b", *more], standalone_mode=False)
        assert done.return_value == 0
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    dry = run("--dry-run")
    assert (dry["rows"], dry["total_rows"], dry["dry_run"]) == (30, 30, True)
    assert not (tmp_path / "lake").exists()
    assert run()["rows"] == len(rows_of(tmp_path / "store")) == 30
    again = run("--dry-run")
    assert (again["rows"], again["queues"]) == (0, dry["queues"])


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"broker\.conf"):
        archive_store(tmp_path, tmp_path / "lake", broker_name="")
    with pytest.raises(SparkSourceError, match="20 digits"):
        archive_store(tmp_path, tmp_path / "lake", broker_name="b")
