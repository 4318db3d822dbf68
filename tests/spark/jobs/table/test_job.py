"""Fresh tables: columns from bodies, changes of the schema, kills, upkeep beside the commits."""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.pace import Patience
from tests.spark.archives.catalog_servers import Lake, start_catalog
from tests.spark.drivers import PATIENCE_S, run_until_killed
from tests.spark.jobs.table.tabling import driver_words, place
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")

from pyiceberg.types import StringType

from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import ArchiveLog, read_archive, read_files
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.table.job import fresh_table
from cometmq.spark.jobs.table.report import TableReport

pytestmark = pytest.mark.spark


def orders(topics: Topics, topic: str, queue_id: int, *bodies: Any) -> None:
    """Send bodies, as JSON unless they are bytes."""
    topics.send(topic, queue_id, [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies])


def columns_of(to: Path) -> dict[str, str]:
    return {column.name: column.type for column in ArchiveLog(to).body_columns()}


def test_a_table_with_given_columns_stays_fresh(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.create(2), tmp_path / "orders"
    orders(topics, topic, 0, {"id": 1, "amount": 2.5, "note": "first"}, b"oops", {"id": "x", "amount": 3})
    orders(topics, topic, 1, {"id": 2, "items": [{"sku": "a"}]})
    metrics, status = tmp_path / "orders.prom", tmp_path / "orders.json"
    given = {"schema": "id bigint, amount double", "once": True, "metrics": metrics, "status": status, "spark": spark}
    done = fresh_table(topic, topics.namesrv, to, **given)
    assert (done.rows, done.bad_bodies, done.committed_behind, done.table_files) == (4, 2, 0, 2)
    assert columns_of(to) == {
        "bodyError": "string",
        "id": "bigint",
        "amount": "double",
        "note": "string",
        "items": "array<struct<sku:string>>",
    }
    rows = read_archive(spark, to).orderBy("queueId", "queueOffset").collect()
    assert [(row.id, row.amount, row.note) for row in rows] == [
        (1, 2.5, "first"),
        (None, None, None),
        (None, 3.0, None),
        (2, None, None),
    ]
    assert [row.bodyError and row.bodyError[:9] for row in rows] == [None, "not JSON:", "id: a tex", None]
    assert bytes(rows[1].body) == b"oops"
    assert rows[3]["items"][0].sku == "a"

    orders(topics, topic, 0, {"id": 3})
    again = fresh_table(topic, topics.namesrv, to, **given)
    assert (again.rows, again.total_rows, again.files_joined) == (1, 5, 2)
    assert {row.id for row in read_archive(spark, to).where("id IS NOT NULL").collect()} == {1, 2, 3}
    shown = json.loads(status.read_text())
    assert (shown["total_rows"], shown["running"], shown["exit_code"]) == (5, False, 0)
    text = metrics.read_text()
    assert f'cometmq_table_rows{{table="{to}"}} 5' in text
    assert 'queue="0",stage="committed"' in text
    with pytest.raises(OptionError, match="column id of the table is bigint, which cannot become string"):
        fresh_table(topic, topics.namesrv, to, **(given | {"schema": "id string"}))
    with pytest.raises(ArchiveError, match="is a table with columns"):
        archive(topics.namesrv, topic, to, spark=spark)


@pytest.mark.crash
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_kills_beside_changes_of_the_columns_lose_and_double_nothing(
    spark: Any, topics: Topics, tmp_path: Path, kind: str
) -> None:
    """Every commit brings a new field; runs are killed before and after such commits."""
    topic, to = topics.create(2), tmp_path / "orders"
    bodies = [{"id": number, "wide": 1 if number < 700 else 2**40, f"f{number // 300}": "x"} for number in range(1500)]
    for queue_id in range(2):
        orders(topics, topic, queue_id, *bodies[queue_id::2])
    given = place(to, kind) | {"schema": "id bigint, wide int", "spark": spark, "once": True}
    for point, batch in (("before-commit", 1), ("after-commit", 1), ("before-commit", 0)):
        run_until_killed(spark, *driver_words(topics, topic, to, point, batch, kind))
    done = fresh_table(topic, topics.namesrv, **given)
    assert (done.total_rows, done.committed_behind) == (1500, 0)
    assert {of.name: of.type for of in done.columns} == {
        "bodyError": "string",
        "id": "bigint",
        "wide": "bigint",
        **{f"f{number}": "string" for number in range(5)},
    }
    if kind == "iceberg":
        table = Lake("lake", given["table_format"].catalog_options, "shop.orders").load()
        rows = table.scan().to_arrow().to_pylist()
        assert str(table.schema().find_type("wide")) == "long"
    else:
        rows = [row.asDict() for row in read_archive(spark, to).collect()]
        assert audit(topics.namesrv, topic, archive=to, allow_duplicates=True, spark=spark).disagreements == ()
    assert sorted(row["id"] for row in rows) == list(range(1500))
    for row in rows:
        number = row["id"]
        assert row["bodyError"] is None
        assert row["wide"] == (1 if number < 700 else 2**40)
        assert [row[f"f{of}"] for of in range(5)] == ["x" if number // 300 == of else None for of in range(5)]


def test_another_program_reads_a_table_in_a_rest_catalog(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(1)
    with start_catalog("rest", tmp_path) as catalog:
        lake = catalog.named("shop.orders")
        given: dict[str, Any] = {"table_format": lake.format, "once": True, "spark": spark}
        orders(topics, topic, 0, {"id": 1, "at": 1_700_000_000_000}, {"id": 2, "lines": [{"sku": "a", "n": 1}]})
        fresh_table(topic, topics.namesrv, schema="at timestamp, price float", **given)
        before = lake.load().current_snapshot().snapshot_id
        orders(topics, topic, 0, {"id": 3, "price": 1e300, "lines": [{"sku": "b", "gift": {"to": "x"}}]}, b"oops")
        done = fresh_table(topic, topics.namesrv, **given)
        assert done.warnings == ()
        table = lake.load()
        rows = table.scan().to_arrow().sort_by("queueOffset").select(["id", "at", "price", "lines"]).to_pylist()
        at = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
        none: dict[str, Any] = {"id": None, "at": None, "price": None, "lines": None}
        for row in rows:  # pyiceberg 0.12 reads a null list as an empty one
            row["lines"] = row["lines"] or None
        assert rows == [
            none | {"id": 1, "at": at},
            none | {"id": 2, "lines": [{"sku": "a", "n": 1, "gift": None}]},
            none | {"id": 3, "price": 1e300, "lines": [{"sku": "b", "n": None, "gift": {"to": "x"}}]},
            none,
        ]
        log = ArchiveLog("iceberg://rest/shop.orders", lake.format)
        ours = read_files(spark, log, log.files(), body_columns=log.body_columns()).orderBy("queueOffset")
        assert [row["lines"] is None for row in ours.collect()] == [True, False, False, True]
        # A reader of the version before the new columns still sees its own schema.
        assert "gift" not in str(table.scan(snapshot_id=before).to_arrow().schema)
        assert done.files_joined == 2


def test_a_newer_run_takes_over_without_a_gap(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """The upgrade of a job: the new run starts while the old one still runs, and the old one then ends by itself."""
    topic = topics.create(1)
    orders(topics, topic, 0, {"id": 1})
    with start_catalog("rest", tmp_path) as catalog:
        take_over(spark, topics, topic, catalog.named("shop.orders"))


def take_over(spark: Any, topics: Topics, topic: str, lake: Lake) -> None:
    given: dict[str, Any] = {"table_format": lake.format}
    ends: list[TableReport] = []
    first = threading.Event()
    old = threading.Thread(
        target=lambda: ends.append(
            fresh_table(topic, topics.namesrv, interval="1s", spark=spark, on_batch=lambda _: first.set(), **given)
        ),
        daemon=True,
    )
    old.start()
    assert first.wait(60)
    orders(topics, topic, 0, {"id": 2})
    fresh_table(topic, topics.namesrv, once=True, spark=spark.newSession(), **given)
    orders(topics, topic, 0, {"id": 3})  # the old run reads it, and may not commit it
    old.join(60)
    assert [end.taken_over for end in ends] == [True]
    assert "taken over by a newer run" in ends[0].render()
    done = fresh_table(topic, topics.namesrv, once=True, spark=spark, **given)
    assert done.total_rows == 3
    rows = lake.load().scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


def test_files_are_joined_beside_many_commits(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, to, stop = topics.create(2), tmp_path / "orders", threading.Event()
    commits: list[int] = []
    status = tmp_path / "orders.json"
    ends: list[TableReport] = []
    running = threading.Thread(
        target=lambda: ends.append(
            fresh_table(
                topic,
                topics.namesrv,
                to,
                interval="100ms",
                join_every_ms=1000,
                keep_versions_ms=0,
                status=status,
                on_batch=lambda batch: commits.append(batch.messages),
                stop=stop,
                spark=spark,
            )
        ),
        daemon=True,
    )
    running.start()
    patience = Patience(120)
    sent = 0
    while len(commits) < 15:
        assert not patience.is_over
        assert running.is_alive()
        for queue_id in range(2):
            orders(topics, topic, queue_id, {"id": sent}, {"id": sent + 1, f"field{sent // 40}": 1})
            sent += 2
    stop.set()
    running.join(60)
    (end,) = ends
    assert (end.upkeep_failures, end.warnings) == (0, ())
    assert end.files_joined > 10
    assert fresh_table(topic, topics.namesrv, to, once=True, spark=spark).total_rows == sent
    assert sorted(row.id for row in read_archive(spark, to).collect()) == list(range(sent))
    assert len(ArchiveLog(to).files()) == 2


def test_a_job_may_keep_its_columns_or_stop(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.create(1), tmp_path / "orders"
    orders(topics, topic, 0, {"id": 1, "new": 1})
    given: dict[str, Any] = {"schema": "id bigint", "once": True, "spark": spark}
    with pytest.raises(ArchiveError, match="need other columns: new bigint is new"):
        fresh_table(topic, topics.namesrv, to, schema_change="stop", **given)
    assert fresh_table(topic, topics.namesrv, to, schema_change="keep", **given).total_rows == 1
    assert set(columns_of(to)) == {"bodyError", "id"}
    (row,) = read_archive(spark, to).collect()
    assert bytes(row.body) == b'{"id": 1, "new": 1}', "the raw body has all fields"
    plain = tmp_path / "plain"
    fresh_table(topic, topics.namesrv, plain, body="none", once=True, spark=spark)
    assert columns_of(plain) == {}


def test_dead_letters_and_delays_of_the_topic_are_kept_if_asked(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, other, to = topics.create(1), topics.create(1), tmp_path / "orders"
    group = f"g-{topic}"
    orders(topics, topic, 0, {"id": 1})
    given: dict[str, Any] = {"dead_letters": [group], "delayed": True, "once": True, "spark": spark}
    assert fresh_table(topic, topics.namesrv, to, **given).total_rows == 1, "the group has no dead letters yet"
    dead = topics.create(1, f"%DLQ%{group}")
    topics.send_one(dead, 0, b'{"id": 2}', f"RETRY_TOPIC\x01{topic}\x02")
    topics.send_one(dead, 0, b'{"id": 3}', f"RETRY_TOPIC\x01{other}\x02")
    for name in (topic, other):
        topics.send_one(name, 0, b'{"id": 4}', "DELAY\x0118\x02")
        topics.send_one(name, 0, b'{"id": 5}', "TIMER_DELAY_SEC\x013600\x02")
        topics.await_waiting(name, 1)
    done = fresh_table(topic, topics.namesrv, to, **given)
    assert done.committed_behind == 0
    found = [(row.topic, row.id) for row in read_archive(spark, to).orderBy("id").collect()]
    assert [identity for _, identity in found] == [1, 2, 4, 5]
    assert [name for name, _ in found[:2]] == [topic, dead]
    assert {name for name, _ in found[2:]} <= {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"}
    again = fresh_table(topic, topics.namesrv, to, **given)
    assert again.rows == 0


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_command_runs_until_it_is_stopped(topics: Topics, tmp_path: Path) -> None:
    topic, status = topics.create(1), tmp_path / "orders.json"
    words = ["pipeline", "table", topic, "-n", topics.namesrv, "--to", tmp_path / "orders", "--interval", "100ms"]
    words += ["--schema", "id bigint", "--status", status, "--master", "local[1]"]
    orders(topics, topic, 0, {"id": 1}, {"id": "x"})
    line = [sys.executable, "-m", "cometmq", *map(str, words)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        patience = Patience(PATIENCE_S)
        while not status.exists() or json.loads(status.read_text())["total_rows"] < 2:
            assert process.poll() is None, process.communicate()
            assert not patience.is_over
            time.sleep(0.2)
        live = json.loads(status.read_text())
        assert (live["running"], live["bad_bodies"], live["committed_behind"]) == (True, 1, 0)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "0 messages and 0 s behind, 1 file" in out
    assert json.loads(status.read_text())["running"] is False


def test_wrong_use_of_the_command(tmp_path: Path) -> None:
    for words, error in (
        (["orders"], "the table needs a place"),
        (["orders", "--catalog", "prod"], "the table needs a place"),
        (["orders", "--to", str(tmp_path), "--format", "delta"], "is a Parquet or an Iceberg table"),
        (["orders", "--to", str(tmp_path), "--schema", "id number"], "there is no type number"),
        (["orders", "--to", str(tmp_path), "--body", "avro"], "avro bodies need a schema"),
        (["orders", "--to", str(tmp_path), "--interval", "soon"], "--interval"),
    ):
        done = CliRunner().invoke(command, ["table", *words])
        assert done.exit_code == 2, (words, done.output)
        assert error in " ".join(done.output.split())


def test_files_with_narrower_types_are_read_beside_wider_ones(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """As long as they are not joined."""
    topic, to = topics.create(1), tmp_path / "orders"
    given: dict[str, Any] = {"once": True, "target_bytes": 1, "spark": spark}
    orders(topics, topic, 0, {"wide": 1, "f": 0.5, "s": {"a": 1}, "l": [{"b": 1}]})
    ddl = "wide int, f float, s struct<a:int>, l array<struct<b:int>>"
    fresh_table(topic, topics.namesrv, to, schema=ddl, **given)
    orders(topics, topic, 0, {"wide": 2**40, "f": 1e300, "s": {"a": 2**40, "n": "x"}, "l": [{"b": 2**40, "n": 1}]})
    done = fresh_table(topic, topics.namesrv, to, **given)
    assert done.table_files == 2
    columns = "wide", "f", "s", "l"
    rows = read_archive(spark, to).orderBy("queueOffset").select(*columns).collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {"wide": 1, "f": 0.5, "s": {"a": 1, "n": None}, "l": [{"b": 1, "n": None}]},
        {"wide": 2**40, "f": 1e300, "s": {"a": 2**40, "n": "x"}, "l": [{"b": 2**40, "n": 1}]},
    ]


def test_columns_that_somebody_has_altered_stop_the_job_with_their_names(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, given = topics.create(1), place(tmp_path / "lake", "iceberg")
    lake = Lake("lake", given["table_format"].catalog_options, "shop.orders")
    orders(topics, topic, 0, {"id": 1})
    fresh_table(topic, topics.namesrv, once=True, spark=spark, **given)
    with lake.load().update_schema() as change:
        change.add_column("amount", StringType())
    orders(topics, topic, 0, {"id": 2, "amount": 2.5})
    with pytest.raises(ArchiveError, match="cannot have the columns amount"):
        fresh_table(topic, topics.namesrv, once=True, spark=spark, **given)
    with lake.load().update_schema() as change:
        change.rename_column("amount", "note")
    done = fresh_table(topic, topics.namesrv, once=True, spark=spark, **given)
    assert (done.total_rows, done.columns[-1].type) == (2, "double")
    with lake.load().update_schema() as change:
        change.delete_column("id")
    orders(topics, topic, 0, {"id": 3})
    with pytest.raises(ArchiveError, match="the column id was dropped or renamed"):
        fresh_table(topic, topics.namesrv, once=True, spark=spark, **given)
