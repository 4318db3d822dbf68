"""Iceberg tables that others have made or altered: continued or refused by a rule, with the next step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")

from tests.spark.archives.catalog_servers import Lake
from tests.spark.archives.test_catalogs import ORDERS, add, offsets, opened

from cometmq.spark.archives import catalogs, iceberg_tables
from cometmq.spark.archives.iceberg_files import archive_schema, iceberg_file
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import ICEBERG, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.testing import VirtualClock


def made_by_others(lake: Lake, schema: Any) -> Any:
    """A table that no archive job has created."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(lake.name, **lake.properties)
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table(lake.table, schema)


def taking_over(lake: Lake) -> ArchiveLog:
    """A job that may continue in an existing table."""
    log = ArchiveLog(None, replace(lake.format, take_over=True))
    with log.locked():
        return log


def test_an_existing_table_is_taken_over_only_if_asked(sqlite: Lake) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StringType

    made_by_others(sqlite, Schema(NestedField(1, "topic", StringType()), NestedField(2, "team", StringType())))
    with pytest.raises(ArchiveError, match=r"has a table .* already.*--take-over"):
        opened(sqlite)
    add(taking_over(sqlite), 0, 0, 5)
    add(opened(sqlite), 1, 5, 7)
    assert offsets(sqlite) == list(range(7))
    assert sqlite.load().scan().to_arrow()["team"].null_count == 7


def test_a_table_that_cannot_become_an_archive_says_what_differs(sqlite: Lake) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    made_by_others(
        sqlite, Schema(NestedField(1, "queueId", StringType()), NestedField(2, "shop", LongType(), required=True))
    )
    with pytest.raises(ArchiveError, match="column queueId is string, not int; column shop is required"):
        taking_over(sqlite)
    assert "cometmq.archive" not in sqlite.load().properties


@pytest.mark.parametrize("how", ["dropped", "renamed"])
def test_a_column_that_somebody_has_dropped_or_renamed(sqlite: Lake, how: str) -> None:
    add(opened(sqlite), 0, 0, 5)
    with sqlite.load().update_schema(allow_incompatible_changes=True) as change:
        if how == "dropped":
            change.delete_column("body")
        else:
            change.rename_column("body", "payload")
    with pytest.raises(ArchiveError, match=r"column body was dropped or renamed.*ADD COLUMN"):
        opened(sqlite)
    with sqlite.load().update_schema() as change:
        if how == "dropped":
            change.add_column("body", archive_schema().find_field("body").field_type)
        else:
            change.rename_column("payload", "body")
    add(opened(sqlite), 1, 5, 7)
    assert offsets(sqlite) == list(range(7))
    assert sqlite.load().scan().to_arrow()["body"].null_count == 0


def test_columns_of_a_newer_version_are_added(sqlite: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.schema import Schema

    fields = archive_schema().fields
    older = Schema(*(field for field in fields if field.name != "storedBody"))
    with monkeypatch.context() as patch:
        patch.setattr("cometmq.spark.archives.iceberg.archive_schema", lambda: older)
        patch.setattr(iceberg_tables, "archive_schema", lambda: older)
        opened(sqlite)
    assert "storedBody" not in sqlite.load().schema().column_names
    add(opened(sqlite), 0, 0, 5)
    assert "storedBody" in sqlite.load().schema().column_names
    assert offsets(sqlite) == list(range(5))


def test_a_table_that_somebody_has_rolled_back(sqlite: Lake) -> None:
    log = opened(sqlite)
    add(log, 0, 0, 5)
    earlier = sqlite.load().current_snapshot().snapshot_id
    add(log, 1, 5, 9)
    later = sqlite.load().current_snapshot().snapshot_id
    sqlite.load().manage_snapshots().set_current_snapshot(earlier).commit()
    with pytest.raises(ArchiveError, match=r"earlier snapshot.*set_current_snapshot"):
        add(log, 2, 9, 12)
    sqlite.load().manage_snapshots().set_current_snapshot(later).commit()
    add(log, 2, 9, 12)
    assert offsets(sqlite) == list(range(12))


def rewrite(lake: Lake) -> None:
    """What another engine's ``rewrite_data_files`` does: the same rows in a file that has its own kind of name."""
    table = lake.load()
    [old] = [task.file for task in table.scan().plan_files()]
    location = old.file_path.replace("/part-", "/00000-1-").replace("-e1-", "-rewritten-")
    path = Path(location.removeprefix("file://"))
    path.write_bytes(Path(old.file_path.removeprefix("file://")).read_bytes())
    with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        snapshot.delete_data_file(old)
        snapshot.append_data_file(iceberg_file(table.io, change.table_metadata, location))


def test_a_table_whose_files_somebody_has_rewritten(sqlite: Lake) -> None:
    log = opened(sqlite)
    add(log, 0, 0, 5)
    before = sqlite.load().current_snapshot().snapshot_id
    rewrite(sqlite)
    add(log, 1, 5, 9)
    assert offsets(sqlite) == list(range(9)), "the job goes on, and other programs read everything"
    for use in (log.files, log.sweep):
        with pytest.raises(ArchiveError, match=r"which an archive job did not write|lies outside of"):
            use()
    sqlite.load().manage_snapshots().set_current_snapshot(before).commit()
    with pytest.raises(ArchiveError, match="earlier snapshot"):
        add(log, 2, 9, 12)


def test_a_table_that_was_rewritten_and_set_back_at_once(sqlite: Lake) -> None:
    log = opened(sqlite)
    add(log, 0, 0, 5)
    before = sqlite.load().current_snapshot().snapshot_id
    rewrite(sqlite)
    sqlite.load().manage_snapshots().set_current_snapshot(before).commit()
    add(log, 1, 5, 9)
    assert offsets(sqlite) == list(range(9))
    assert [file.rows for file in log.files()] == [5, 4]


def test_a_table_that_somebody_has_partitioned_otherwise(sqlite: Lake) -> None:
    from pyiceberg.transforms import BucketTransform

    log = opened(sqlite)
    with sqlite.load().update_spec() as change:
        change.add_field("uniqKey", BucketTransform(8), "bucket")
    with pytest.raises(ArchiveError, match=r"partition bucket .*of uniqKey"):
        add(log, 0, 0, 5)


@pytest.mark.parametrize(
    ("partition", "names"), [("topic,day", ["topic", "day"]), ("queueId,month", ["queueId_part", "month"])]
)
def test_partitions_as_asked(sqlite: Lake, partition: str, names: list[str]) -> None:
    log = ArchiveLog(None, replace(sqlite.format, partition=partition))
    with log.locked():
        add(log, 0, 0, 5)
    table = sqlite.load()
    assert [field.name for field in table.spec().fields] == names
    assert table.scan(row_filter="storeTimestamp < '2024-01-02T00:00:00+00:00'").to_arrow().num_rows == 5
    assert table.scan(row_filter="storeTimestamp > '2024-02-02T00:00:00+00:00'").to_arrow().num_rows == 0


@pytest.mark.parametrize("partition", ["week", "topic,topic", "hour,day", ""])
def test_partitions_that_do_not_exist(partition: str) -> None:
    with pytest.raises(OptionError, match="partitions"):
        TableFormat(ICEBERG, "prod", "shop.orders", partition=partition).check()


def test_an_address_names_the_table(sqlite: Lake) -> None:
    add(opened(sqlite), 0, 0, 5)
    options = TableFormat(ICEBERG, catalog_options=sqlite.properties)
    log = ArchiveLog(f"iceberg://sqlite/{sqlite.table}", options)
    assert log.next_offsets() == {ORDERS: 5}
    assert log.url == f"iceberg://sqlite/{sqlite.table}"
    with pytest.raises(OptionError, match=r"is not the table shop.other"):
        ArchiveLog(f"iceberg://sqlite/{sqlite.table}", replace(options, catalog="sqlite", table="shop.other"))


def test_a_table_that_does_not_exist(sqlite: Lake) -> None:
    log = ArchiveLog(None, sqlite.format)
    assert log.files() == []
    with pytest.raises(OptionError, match="contains no archive"):
        log.demand_any()


def test_a_catalog_that_is_away_ends_the_job_with_a_sentence_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogs, "PAUSES_S", (0.01,))
    away = {
        "type": "rest",
        "uri": "http://127.0.0.1:1",
        "oauth2-server-uri": "http://127.0.0.1:1/token",
        "credential": "me:zq7-secret",
    }
    log = ArchiveLog(None, TableFormat(ICEBERG, "prod", "shop.orders", away))
    with pytest.raises(ArchiveError, match=r"catalog prod does not answer.*run the same command again") as raised:
        log.last()
    assert "zq7-secret" not in repr(raised.value) + repr(log.wanted)


def test_a_catalog_that_comes_back_within_the_pauses_is_not_noticed(
    sqlite: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import ServiceUnavailableError

    log = opened(sqlite)
    monkeypatch.setattr(catalogs, "PAUSES_S", (0.01, 0.01))
    load, failures = SqlCatalog.load_table, [1, 2]

    def fail_twice(catalog: Any, name: Any) -> Any:
        if failures:
            failures.pop()
            raise ServiceUnavailableError("busy")
        return load(catalog, name)

    monkeypatch.setattr(SqlCatalog, "load_table", fail_twice)
    add(log, 0, 0, 5)
    assert offsets(sqlite) == list(range(5))


def test_a_vacuum_beside_a_job_that_commits_leaves_old_snapshots_to_the_next_one(
    sqlite: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    add(opened(sqlite), 0, 0, 5)
    log = ArchiveLog(None, sqlite.format, clock=VirtualClock(start_ms=4_000_000_000_000))

    def fail(*_: Any) -> None:
        raise CommitFailedException("the table was changed")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", fail)
        log.sweep(keep_ms=1)
    assert len(sqlite.load().metadata.snapshots) == 2
    log.sweep(keep_ms=1)
    assert len(sqlite.load().metadata.snapshots) == 1
    assert offsets(sqlite) == list(range(5))
