"""Delta archives in storages of all kinds: each commit once, one writer, and the format's own package agrees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("deltalake", reason="deltalake is not installed (pip install cometmq[delta])")
pytest.importorskip("obstore", reason="obstore is not installed (pip install cometmq[lake])")

from tests.spark.lake_files import AT_MS, HOUR_MS, QUEUES, cover, messages
from tests.storage.servers.faults import Faults, faulty
from tests.storage.servers.gcs import gcs
from tests.storage.servers.seaweed import S3Server

from cometmq.archive.changes import Batch, batch_commit
from cometmq.archive.commits import Commit
from cometmq.spark.archives import versioned
from cometmq.spark.archives.delta import DeltaArchive
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import DELTA_LOG, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.upkeep import join_files, planned_joinings
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.storage import (
    Location,
    Storage,
    StorageError,
    StorageOptions,
    UnsafeStorageError,
    connection,
    open_storage,
)
from cometmq.storage.connection import object_store_texts
from cometmq.testing import VirtualClock

ORDERS = QUEUES[1]
"""Its topic has characters that are encoded in paths, and once more in the log."""
DELTA = TableFormat("delta")


def opened(storage: Storage) -> ArchiveLog:
    """A job that has opened the archive."""
    log = ArchiveLog(storage, DELTA)
    with log.locked():
        return log


def add(log: ArchiveLog, batch: int, first: int, end: int, query: str = "q") -> Commit | None:
    """Write and commit messages of one queue; none if the range is empty."""
    files = []
    if end > first:
        with Uploads(log.storage, log.writer.epoch) as uploads:
            writer = QueueWriter(uploads, ORDERS, arrow_schema(ARCHIVE_COLUMNS))
            writer.add(messages(ORDERS, range(first, end)))
            files = writer.close()
    return log.append(Batch(query, batch, [cover(ORDERS, first, end)] if files else [], files))


def by_the_library(log: ArchiveLog) -> list[int]:
    """The offsets that deltalake reads, in order."""
    from deltalake import DeltaTable

    table: Any = log._table
    assert isinstance(table, DeltaArchive)
    settings = object_store_texts(table._location, table._options)
    read = DeltaTable(table._address, storage_options=settings).to_pyarrow_table(columns=["queueOffset"])
    return sorted(read["queueOffset"].to_pylist())


def test_a_table_in_each_kind_of_storage(storage: Storage) -> None:
    """Also below a name that a URL must encode; files that were joined or expired leave no trace for readers."""
    storage = storage.below("orders+1" if storage.url.startswith("hdfs:") else "注文 +")
    assert ArchiveLog(storage, DELTA).last() is None
    log = opened(storage)
    assert add(log, 0, 0, 10)
    assert add(log, 0, 0, 10) is None
    assert add(opened(storage), 1, 10, 15)
    found = ArchiveLog(storage)
    assert (found.format, found.next_offsets(), found.last_batch_of("q")) == ("delta", {ORDERS: 15}, 1)
    assert by_the_library(found) == list(range(15))

    [joining] = planned_joinings(found.files(), 1 << 30, AT_MS + HOUR_MS)
    found.replace(joining.files, [join_files(found.storage, joining.files)])
    assert {file.rows for file in log.files()} == {15}, "the other process sees it"
    assert by_the_library(log) == list(range(15))
    assert found.sweep(keep_ms=-1000) != []
    found.expire(found.files())
    assert (by_the_library(log), log.next_offsets()) == ([], {ORDERS: 15})
    assert len(found._table.removed_since(AT_MS)) == 3


def test_an_older_job_is_fenced_even_if_it_has_nothing_to_add(storage: Storage) -> None:
    older = opened(storage)
    add(older, 0, 0, 10)
    newer = opened(storage)
    for end in (20, 10):
        with pytest.raises(ArchiveError, match="another job has taken over the Delta table"):
            add(older, 1, 10, end)
    add(newer, 0, 10, 12, query="r")
    assert by_the_library(newer) == list(range(12))


def test_of_two_commits_from_one_version_one_is_computed_again(storage: Storage) -> None:
    log, other = opened(storage), DeltaArchive(storage)
    add(log, 0, 0, 10)
    table: Any = log._table
    load, seen = table.load, list[Any]()

    def load_then_lose() -> Any:
        version = load()
        if not seen:
            seen.append(version)
            table.load = load
            empty = Batch("q", 1, [], [])
            assert other.append(log.writer, lambda before: batch_commit(before, empty, 1))
        return version

    table.load = load_then_lose
    assert add(log, 2, 10, 20)
    last = log.last()
    assert last is not None
    assert (last.batch_id, last.sequence) == (2, 3)
    assert by_the_library(log) == list(range(20))


def test_of_two_jobs_that_create_the_table_the_later_one_owns_it(storage: Storage) -> None:
    log, other = ArchiveLog(storage, DELTA), ArchiveLog(storage, DELTA)
    table: Any = log._table
    load = table.load

    def load_then_lose() -> Any:
        version, table.load = load(), load
        assert add(other, 0, 0, 10)
        return version

    table.load = load_then_lose
    assert log.writer.epoch == 2
    with pytest.raises(ArchiveError, match="another job has taken over"):
        add(other, 1, 10, 20)
    assert by_the_library(log) == list(range(10))


# Bad days of a server -----------------------------------------------------------------------------------------


@pytest.fixture
def proxied(s3: S3Server) -> Iterator[tuple[Storage, Faults]]:
    """A storage behind a proxy that fails."""
    with faulty(s3.endpoint) as (endpoint, faults):
        url = f"s3a://lake/delta-{os.urandom(4).hex()}"
        yield open_storage(url, replace(s3.options, endpoint=endpoint)), faults


def is_version(method: str, path: str) -> bool:
    """Whether a request writes a version."""
    return method == "PUT" and DELTA_LOG in path and path.endswith(".json")


@pytest.mark.parametrize(("kind", "times"), [("503", 4), ("500", 2), ("cut", 2), ("lost", 1), ("lost", 2)])
def test_a_commit_whose_request_fails_for_a_while_is_made_once(
    proxied: tuple[Storage, Faults], kind: str, times: int
) -> None:
    """If the answer is lost, deltalake sends the request again, and reports our own version as another's."""
    storage, faults = proxied
    faults.fail(kind, times, is_version)
    log = opened(storage)
    assert faults.left == 0
    assert log.writer.epoch == 1
    faults.fail(kind, times, is_version)
    assert add(log, 0, 0, 10)
    assert faults.left == 0
    assert add(log, 1, 10, 20)
    assert by_the_library(log) == list(range(20))
    assert [file.rows for file in log.files()] == [10, 10]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries end at once."""
    monkeypatch.setattr(connection, "_RETRIES", connection._RETRIES | {"max_retries": 0})
    monkeypatch.setattr(versioned, "_PAUSE_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_commit_without_an_answer_is_looked_up(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    log = opened(storage)
    for batch, kind in enumerate(("lost", "503")):
        faults.fail(kind, 1, is_version)
        faults.seen.clear()
        assert add(log, batch, 10 * batch, 10 * batch + 10)
        sent = [request for request in faults.seen if is_version(*request.split(" "))]
        assert len(sent) == (1 if kind == "lost" else 2), kind
    assert by_the_library(log) == list(range(20))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", ["403", "503"])
def test_a_checkpoint_that_cannot_be_written_does_not_undo_its_commit(
    s3: S3Server, proxied: tuple[Storage, Faults], status: str
) -> None:
    from deltalake import DeltaTable

    storage, faults = proxied
    log = opened(storage)
    table: Any = log._table
    other = DeltaTable(table._address, storage_options=table._settings | {"endpoint": s3.endpoint})
    other.alter.set_table_properties({"delta.checkpointInterval": "2"})
    denied = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>No.</Message></Error>"
    faults.fail(status, 1, lambda method, path: "checkpoint" in path and method != "GET", denied)
    for batch in range(3):
        assert add(log, batch, 10 * batch, 10 * batch + 10)
    assert faults.left == 0
    assert len([request for request in faults.seen if is_version(*request.split(" "))]) == 4
    assert by_the_library(log) == list(range(30))


@pytest.mark.usefixtures("impatient")
def test_a_server_that_never_answers_ends_the_job_with_a_sentence(
    proxied: tuple[Storage, Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is deleted, since the commit may exist; the same command goes on."""
    storage, faults = proxied
    log = opened(storage)
    monkeypatch.setattr(versioned, "PATIENCE_S", 0)
    faults.fail("503", 10, is_version)
    with pytest.raises(ArchiveError, match=r"did not confirm a commit: .* asks for fewer requests") as failed:
        add(log, 0, 0, 10)
    assert "\x1b" not in str(failed.value)
    faults.fail("503", 10)
    with pytest.raises(StorageError, match="asks for fewer requests: SlowDown"):
        log.last()
    faults.left = 0
    [left] = [key for key, _ in log.sweep(keep_ms=0, dry_run=True)] or [""]
    assert left == "", "a file without a commit stays while its job may be at work"
    assert add(opened(storage), 0, 0, 10)
    assert by_the_library(log) == list(range(10))


def test_the_last_commit_is_found_without_reading_the_log(s3: S3Server, proxied: tuple[Storage, Faults]) -> None:
    """Behind many versions of another program, too; later calls read only what is new."""
    from deltalake import DeltaTable

    storage, faults = proxied
    log = opened(storage)
    add(log, 0, 0, 10)
    table: Any = log._table
    settings = table._settings | {"endpoint": s3.endpoint}  # it changes properties with the GIL held: not by the proxy
    other = DeltaTable(table._address, storage_options=settings)
    for _ in range(3):
        other.alter.set_table_properties({"delta.appendOnly": "false"})
    fresh = ArchiveLog(storage)
    assert fresh.next_offsets() == {ORDERS: 10}
    faults.seen.clear()
    assert fresh.next_offsets() == {ORDERS: 10}
    read = [request for request in faults.seen if ".json" in request]
    assert len(read) <= 7, "groups of one, two and four versions"
    for _ in range(30):
        other.alter.set_table_properties({"delta.appendOnly": "false"})
    assert fresh.next_offsets() == {ORDERS: 10}
    assert add(log, 1, 10, 20)
    faults.seen.clear()
    assert fresh.next_offsets() == {ORDERS: 20}
    assert len(faults.seen) <= 5, faults.seen
    assert fresh.last_batch_of("q") == 1


def test_a_table_that_was_deleted_meanwhile_is_not_continued(proxied: tuple[Storage, Faults]) -> None:
    storage, _ = proxied
    log = opened(storage)
    add(log, 0, 0, 10)
    storage.delete([found.key for found in storage.list_objects()])
    with pytest.raises(ArchiveError, match=r"cannot be read: .*File not found"):
        add(log, 1, 10, 20)
    assert [found.key for found in storage.list_objects(DELTA_LOG)] == []


def test_wrong_credentials_are_named_and_not_shown(s3: S3Server) -> None:
    options = replace(s3.options, secret_access_key="zq7-wrong")
    with pytest.raises(StorageError, match="does not match the access key") as failed:
        DeltaArchive(open_storage("s3://lake/denied", options)).load()
    table = DeltaArchive(open_storage("s3://lake/denied", options))
    settings = object_store_texts(table._location, options)
    with pytest.raises(StorageError, match="does not match the access key") as refused, table._failures():
        table._delta.DeltaTable(table._address, storage_options=settings)
    assert "zq7" not in f"{failed.value} {refused.value}"


def test_the_authority_of_a_server_comes_from_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/bundle.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    place = Location.parse("s3://lake/orders")
    with pytest.raises(StorageError, match=r"export SSL_CERT_FILE=/etc/bundle\.pem"):
        object_store_texts(place, StorageOptions())
    assert object_store_texts(place, StorageOptions(endpoint="http://localhost:9000"))
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/authority.pem")
    assert object_store_texts(place, StorageOptions(ca_file="/etc/authority.pem"))
    with pytest.raises(StorageError, match=r"export SSL_CERT_FILE=/etc/other\.pem"):
        object_store_texts(place, StorageOptions(ca_file="/etc/other.pem"))


def test_stores_without_conditional_writes_are_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for options in (
        StorageOptions(forbid_overwrite_header="x-oss-forbid-overwrite"),
        StorageOptions(endpoint="https://s3.oss-cn-hangzhou.aliyuncs.com"),
        StorageOptions(endpoint="https://cos.ap-guangzhou.myqcloud.com:443/"),
    ):
        with pytest.raises(OptionError, match="If-None-Match") as refused:
            DeltaArchive(open_storage("s3://lake/oss", options))
        assert "--format parquet" in (refused.value.next_step or "")
    with gcs(tmp_path, heeds_conditions=False) as options, pytest.raises(UnsafeStorageError):
        opened(open_storage("gs://lake/ignores", options))
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "True")
    with pytest.raises(OptionError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set") as refused:
        DeltaArchive(open_storage("s3://lake/unsafe", s3.options))
    assert "unset" in (refused.value.next_step or "")


def test_names_that_deltalake_does_not_find_again_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "a%41", "s3://lake/a%41", "hdfs://localhost:1/注文"):
        with pytest.raises(OptionError, match="does not find files below this name"):
            DeltaArchive(open_storage(place))


def test_conditional_writes_cannot_be_turned_off_by_the_environment(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    storage = open_storage(f"s3://lake/conditional-{os.urandom(4).hex()}", s3.options)
    older, newer = opened(storage), opened(storage)
    assert add(newer, 0, 0, 10)
    with pytest.raises(ArchiveError, match="another job has taken over"):
        add(older, 0, 0, 10)


def test_a_vacuum_reads_only_the_newest_part_of_the_log(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    clock = VirtualClock(start_ms=AT_MS)
    log = ArchiveLog(storage, DELTA, clock=clock)
    for batch in range(16):
        add(log, batch, batch, batch + 1)
        clock.advance(HOUR_MS / 1000)
    gone = log.files()[0]
    log.expire([gone])
    faults.seen.clear()
    assert log._table.removed_since(AT_MS + 15 * HOUR_MS) == {gone.path}
    read = [request for request in faults.seen if request.startswith("GET") and ".json" in request]
    assert len(read) < 10, read
