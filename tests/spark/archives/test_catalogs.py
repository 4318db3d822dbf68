"""Archives as Iceberg tables in catalogs on real servers: each commit once, one writer, no change of others unseen."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")

from tests.spark.archives.catalog_servers import Lake
from tests.spark.lake_files import QUEUES, cover, messages

from cometmq.archive.changes import Batch, batch_commit
from cometmq.archive.commits import Commit
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.iceberg import IcebergArchive
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.versioned import CommitUnknownError
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema

ORDERS = QUEUES[0]


def add(log: ArchiveLog, batch: int, first: int, end: int, query: str = "q") -> Commit | None:
    """Write and commit messages of one queue; none if the range is empty."""
    files = []
    if end > first:
        with Uploads(log.storage, log.writer.epoch) as uploads:
            writer = QueueWriter(uploads, ORDERS, arrow_schema(ARCHIVE_COLUMNS))
            writer.add(messages(ORDERS, range(first, end)))
            files = writer.close()
    return log.append(Batch(query, batch, [cover(ORDERS, first, end)] if files else [], files))


def offsets(lake: Lake) -> list[int]:
    """What pyiceberg reads, in order."""
    return sorted(lake.load().scan(selected_fields=("queueOffset",)).to_arrow()["queueOffset"].to_pylist())


def opened(lake: Lake) -> ArchiveLog:
    """A job that has opened the archive."""
    log = ArchiveLog(None, lake.format)
    with log.locked():
        return log


def test_a_table_whose_location_the_catalog_chooses(lake: Lake) -> None:
    log = opened(lake)
    assert add(log, 0, 0, 10)
    assert add(log, 0, 0, 10) is None
    assert add(opened(lake), 1, 10, 15)
    assert offsets(lake) == list(range(15))
    assert ArchiveLog(None, lake.format).next_offsets() == {ORDERS: 15}
    assert {file.rows for file in log.files()} == {10, 5}


def test_an_older_job_is_fenced_even_if_it_has_nothing_to_add(lake: Lake) -> None:
    older = opened(lake)
    add(older, 0, 0, 10)
    newer = opened(lake)
    for end in (20, 10):
        with pytest.raises(ArchiveError, match="another job has taken over"):
            add(older, 1, 10, end)
    add(newer, 0, 10, 12, query="r")
    assert offsets(lake) == list(range(12))


def test_of_two_commits_from_one_version_one_is_computed_again(lake: Lake) -> None:
    """An empty batch makes a snapshot too: otherwise the catalog would accept both."""
    log, other = opened(lake), IcebergArchive(None, lake.format)
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
    assert log.last_batch_of("q") == 2
    assert offsets(lake) == list(range(20))


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_without_an_answer_is_looked_up(sqlite: Lake, landed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(sqlite)
    add(log, 0, 0, 10)
    table: Any = log._table
    commit, calls = table.commit, []

    def lose_answer(before: Any, what: Commit) -> None:
        calls.append(what)
        if landed or len(calls) > 1:
            commit(before, what)
        if len(calls) == 1:
            raise CommitUnknownError("the answer was lost")

    monkeypatch.setattr(table, "commit", lose_answer)
    assert add(log, 1, 10, 20)
    assert len(calls) == (1 if landed else 2)
    assert offsets(sqlite) == list(range(20))
    assert len(log.files()) == 2


def test_a_commit_that_was_sent_twice_keeps_its_manifests(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy repeats a request whose answer was lost; the catalog refuses the second one."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table import Table

    log = opened(lake)
    send, sent = Table._do_commit, list[int]()

    def send_twice(table: Any, *given: Any, **named: Any) -> None:
        send(table, *given, **named)
        if not sent:
            sent.append(1)
            raise CommitFailedException("the table has another snapshot")

    monkeypatch.setattr(Table, "_do_commit", send_twice)
    assert add(log, 0, 0, 10)
    assert offsets(lake) == list(range(10))
    assert len(log.files()) == 1


def test_retries_that_another_program_has_turned_on_are_off_again(sqlite: Lake) -> None:
    log = opened(sqlite)
    with sqlite.load().transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    add(log, 0, 0, 10)
    assert sqlite.load().properties["commit.retry.num-retries"] == "0"
    assert offsets(sqlite) == list(range(10))


def test_snapshots_that_another_program_expires_change_nothing(sqlite: Lake) -> None:
    log = opened(sqlite)
    for batch in range(3):
        add(log, batch, batch, batch + 1)
    table = sqlite.load()
    table.maintenance.expire_snapshots().by_ids([of.snapshot_id for of in table.metadata.snapshots[:-1]]).commit()
    assert add(opened(sqlite), 1, 2, 3) is None
    assert add(opened(sqlite), 3, 3, 4)
    assert offsets(sqlite) == [0, 1, 2, 3]


def test_a_catalog_may_demand_requests_signed_with_sigv4(catalog_servers: Callable[[str], Lake]) -> None:
    rest = catalog_servers("rest")
    signed = {name: value for name, value in rest.properties.items() if name not in ("credential", "oauth2-server-uri")}
    signed |= {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables", "rest.signing-region": "us-east-1"}
    keys = {"client.access-key-id": rest.properties["s3.access-key-id"], "client.secret-access-key": "not-the-secret"}
    lake = Lake("signed", signed | keys, f"shop.t{uuid.uuid4().hex}")
    with pytest.raises(ArchiveError, match="the catalog signed denies access") as denied:
        opened(lake)
    assert "not-the-secret" not in str(denied.value)
    keys["client.secret-access-key"] = rest.properties["s3.secret-access-key"]
    lake = Lake("signed", signed | keys, lake.table)
    assert add(opened(lake), 0, 0, 10)
    assert offsets(lake) == list(range(10))
