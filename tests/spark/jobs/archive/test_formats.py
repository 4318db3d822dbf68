"""Archives as Delta and Iceberg tables: the same bytes, once, for our jobs and for other readers of the table."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.unpack import unpack
from tests.spark.drivers import PATIENCE_S, run_until_killed
from tests.spark.jobs.archive.archiving import MOST, driver_words
from tests.spark.jobs.replay.replaying import said_by
from tests.spark.lake_files import demand_exactly
from tests.spark.sinking import stored
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

pytest.importorskip("deltalake", reason="deltalake is not installed (pip install cometmq[delta])")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")

from cometmq.archive.commits import APPENDED, Commit
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.delta import DeltaArchive
from cometmq.spark.archives.iceberg import IcebergArchive
from cometmq.spark.archives.log import ArchiveLog, read_archive, record_of
from cometmq.spark.errors import ArchiveError, SparkSourceError
from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.key_index import build_key_index, find_by_key
from cometmq.spark.jobs.mask.job import mask
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.replay.job import replay

pytestmark = pytest.mark.spark

TABLES: dict[str, Any] = {"delta": DeltaArchive, "iceberg": IcebergArchive}


def rows_by_the_library(root: Path, name: str) -> Any:
    """The rows that the format's own package reads."""
    if name == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(root)).to_pyarrow_table()
    from pyiceberg.catalog import load_catalog

    own = {"type": "sql", "uri": f"sqlite:///{root}/_catalog.db", "warehouse": f"file://{root}"}
    return load_catalog("archive", **own).load_table("cometmq.archive").scan().to_arrow()


@pytest.mark.parametrize("name", TABLES)
def test_a_store_of_apache_comes_back_byte_for_byte(spark: Any, golden: Path, tmp_path: Path, name: str) -> None:
    source = golden / "stores" / "clean"
    unpack(source / "store.tar.gz", tmp_path)
    with gzip.open(source / "manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
        served = [line for line in map(json.loads, lines) if line["kind"] == "message"]
    topics = sorted({line["topic"] for line in served})
    lake = tmp_path / "lake"
    done = archive_store(tmp_path / "store", lake, broker_name="b", topics=topics, table_format=name, spark=spark)
    assert (done.rows, done.complete) == (len(served), True)
    rows = [row.asDict() for row in read_archive(spark, lake).collect()]
    assert sorted(hashlib.sha256(record_of(row)).hexdigest() for row in rows) == sorted(
        line["recordSha256"] for line in served
    )
    others = rows_by_the_library(lake, name)
    assert sorted(others["physicalOffset"].to_pylist()) == sorted(row["physicalOffset"] for row in rows)
    assert set(others["topic"].to_pylist()) == set(topics)
    again = archive_store(tmp_path / "store", lake, broker_name="b", topics=topics, spark=spark)
    assert (again.rows, again.total_rows) == (0, len(served))


@pytest.mark.parametrize("name", TABLES)
def test_every_reader_of_archives_reads_it(spark: Any, topics: Topics, tmp_path: Path, name: str) -> None:
    topic, copy, lake = topics.create(2), topics.create(2), tmp_path / "lake"
    topics.send(topic, 0, [b"%03d" % number for number in range(50)], "TAGS\x01a\x02KEYS\x01k1 k2\x02own\x01ä\x02")
    archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", table_format=name, spark=spark)
    topics.send_packed(topic, 1, b"packed " * 500, "KEYS\x01big\x02UNIQ_KEY\x017F00000100000000000000000000ABCD\x02")
    second = archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=spark)
    assert (second.rows, second.total_rows) == (1, 51)
    demand_exactly(spark, lake, topic, {0: 50, 1: 1})
    assert {file.committed_ms > 0 for file in ArchiveLog(lake).files()} == {True}

    assert replay(lake, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark).messages == 51
    before, after = stored(topics, topic, 2), stored(topics, copy, 2)
    assert [[said_by(record) for record in queue] for queue in after] == [
        [said_by(record) for record in queue] for queue in before
    ]
    build_key_index(lake, tmp_path / "index", spark=spark)
    [found] = find_by_key(lake, tmp_path / "index", topic, "big")
    assert found.body == b"packed " * 500
    if name == "iceberg":  # an audit takes many queries, and sees no more of a table than the others
        report = audit(topics.namesrv, topic, archive=lake, allow_duplicates=True, spark=spark)
        assert report.disagreements == ()


@pytest.mark.parametrize("name", TABLES)
def test_a_masked_copy_has_these_formats_too(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Step by step, gone on with behind a driver that died, and open to the format's own package and to replays."""
    topic, copy, lake = topics.create(2), topics.create(2), tmp_path / "lake"
    bodies = [json.dumps({"n": number, "phone": "zq7-secret"}).encode() for number in range(60)]
    for queue_id in range(2):
        topics.send(topic, queue_id, bodies[queue_id::2])
    source, rules = MessageSource(topics.namesrv), rules_from_options(["$.phone=mask"])
    commit = TABLES[name].commit

    def dying(table: Any, before: Any, what: Commit) -> None:
        commit(table, before, what)
        if what.kind == APPENDED and what.batch_id == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(TABLES[name], "commit", dying)
    with pytest.raises(OSError, match="No space left"):
        mask(source, topic, rules, lake, table_format=name, step_offsets=20, spark=spark)
    monkeypatch.undo()
    done = mask(source, topic, rules, lake, step_offsets=20, spark=spark)
    assert (done.messages, done.total, done.complete) == (20, 60, True)
    read = [json.loads(body) for body in rows_by_the_library(lake, name)["body"].to_pylist()]
    assert sorted(document["n"] for document in read) == list(range(60))
    assert {document["phone"] for document in read} == {"*" * len("zq7-secret")}
    assert [path for path in lake.rglob("*") if path.is_file() and b"zq7-secret" in path.read_bytes()] == []
    assert replay(lake, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark).messages == 60
    with pytest.raises(ArchiveError, match=f"of format {name}, not parquet"):
        mask(source, topic, rules, lake, table_format="parquet", spark=spark)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_a_driver_that_dies_at_the_transaction(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    """Spark repeats the batch; behind the transaction its tasks and the driver pass over it."""
    topic, lake = topics.fill(300, queues=2), tmp_path / "lake"
    commit = TABLES[name].commit

    def dying(table: Any, before: Any, what: Commit) -> None:
        if after or what.kind != APPENDED:
            commit(table, before, what)
        if what.kind != APPENDED:
            return
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TABLES[name], "commit", dying)
    with pytest.raises(SparkSourceError, match="could not be committed"):
        archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", table_format=name, spark=spark)
    monkeypatch.undo()
    topics.send(topic, 0, [b"more"] * 5)
    done = archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", table_format=name, spark=spark)
    assert done.rows == (5 if after else 305)
    demand_exactly(spark, lake, topic, {0: 155, 1: 150})


@pytest.mark.crash
@pytest.mark.timeout(3 * PATIENCE_S)
@pytest.mark.parametrize("name", TABLES)
def test_a_driver_killed_between_writing_and_commit(spark: Any, topics: Topics, tmp_path: Path, name: str) -> None:
    """The batch is written again under other names, each message is there once; a vacuum removes the first files."""
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    topic = topics.fill(2 * MOST, queues=3)
    run_until_killed(spark, *driver_words(topics, topic, (lake, checkpoint), "before-commit", 1, name))
    assert read_archive(spark, lake).count() == rows_by_the_library(lake, name).num_rows == MOST
    left = ArchiveLog(lake).sweep(dry_run=True)
    assert left
    done = archive(topics.namesrv, topic, lake, checkpoint, spark=spark)
    assert (done.rows, done.complete) == (MOST, True)
    demand_exactly(spark, lake, topic, {0: 2000, 1: 2000, 2: 2000})
    assert rows_by_the_library(lake, name).num_rows == 2 * MOST
    assert ArchiveLog(lake).sweep() == left


@pytest.mark.parametrize("name", TABLES)
def test_the_command_makes_a_table_and_goes_on_with_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    write_store(tmp_path / "store", 30, body=lambda number: b"x")
    words = ["archive", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "lake"), "--broker-name", "b"]
    done = CliRunner().invoke(command, [*words, "--format", name], standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0)
    assert rows_by_the_library(tmp_path / "lake", name).num_rows == 30
    again = CliRunner().invoke(command, [*words, "-o", "json"], standalone_mode=False)
    assert json.loads(again.stdout)["total_rows"] == 30
    other = CliRunner().invoke(command, [*words, "--format", "parquet"], standalone_mode=False)
    assert isinstance(other.exception, ArchiveError)
