"""Archives in an S3 server: exactly once without a checkpoint, also when drivers are killed and the server fails."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("deltalake", reason="deltalake is not installed (pip install cometmq[delta])")

from click.testing import CliRunner
from tests.helpers.waiting import wait_for
from tests.spark.drivers import attached, end_group, run_until_killed, start_driver
from tests.spark.jobs.archive.archiving import MOST, driver_words
from tests.spark.topics import Topics
from tests.storage.servers.faults import Faults, faulty
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, S3Server

from cometmq.archive import open_archive
from cometmq.archive.changes import Batch
from cometmq.cli.jobs.pipeline import command
from cometmq.message.record import decode_record
from cometmq.spark.archives.log import ArchiveLog, read_archive, record_of
from cometmq.spark.errors import ArchiveError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.upkeep import compact, expire, vacuum
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.replay.job import replay
from cometmq.storage import Storage
from cometmq.storage.objects import ObjectStorage

pytestmark = pytest.mark.spark
PATIENCE_S = 120
FORMATS = ("parquet", "delta")


@pytest.fixture
def lake(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new archive; new processes have its credentials in their environment, as in a pod."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://lake/archive-{uuid.uuid4().hex}"


def options(s3: S3Server) -> dict[str, str]:
    """The options of a storage, with its credentials, as a session or a program gives them."""
    return {"endpoint": s3.endpoint, "accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY}


def by_deltalake(lake: str, s3: S3Server) -> list[tuple[int, int]]:
    """Queue and offset of each message of a Delta table, as its own package reads them."""
    from deltalake import DeltaTable

    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1", "allow_http": "true"}
    rows = DeltaTable(lake, storage_options={"endpoint": s3.endpoint, **keys}).to_pyarrow_table()
    return sorted(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True))


def demand_exactly(spark: Any, lake: str, storage: dict[str, str], counts: dict[int, int]) -> None:
    """Every offset of every queue is in the archive once, by the log and by the files."""
    log = ArchiveLog(lake, storage=storage)
    assert {of.queue_id: (of.first, of.next, of.rows) for of in log.queues()} == {
        queue_id: (0, count, count) for queue_id, count in counts.items()
    }
    rows = read_archive(spark, lake, storage).select("queueId", "queueOffset").collect()
    assert sorted((row.queueId, row.queueOffset) for row in rows) == [
        (queue_id, offset) for queue_id in sorted(counts) for offset in range(counts[queue_id])
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_an_archive_is_continued_read_compared_joined_and_sent_again(
    spark: Any, topics: Topics, s3: S3Server, lake: str, tmp_path: Path, name: str
) -> None:
    topic, keys = topics.fill(3000, queues=2), options(s3)
    report = archive(
        topics.namesrv, topic, lake, max_offsets_per_trigger=2000, table_format=name, storage=keys, spark=spark
    )
    assert (report.rows, report.batches, report.finished, report.directory) == (3000, 2, True, lake)
    topics.send(topic, 1, [b"more"] * 10)
    assert archive(topics.namesrv, topic, lake, storage=keys, dry_run=True).rows == 10
    assert archive(topics.namesrv, topic, lake, storage=keys, spark=spark).rows == 10
    demand_exactly(spark, lake, keys, {0: 1500, 1: 1510})
    row = read_archive(spark, lake, keys).where("queueOffset = 7 AND queueId = 1").first()
    assert row is not None
    assert decode_record(record_of(row.asDict())).queue_offset == 7
    checked = audit(topics.namesrv, topic, archive=lake, storage=keys, spark=spark)
    assert checked.disagreements == ()

    joined = compact(lake, settled_ms=-3_600_000, storage=keys, spark=spark)
    assert joined.files_after < joined.files_before
    demand_exactly(spark, lake, keys, {0: 1500, 1: 1510})
    assert expire(lake, keep_ms=3_600_000, storage=keys).files_before == 0
    gone = vacuum(lake, keep_ms=-1000, storage=keys).files_before
    assert gone == joined.files_before - 1, "a file of the newest run stays for a day, since the run may go on"
    demand_exactly(spark, lake, keys, {0: 1500, 1: 1510})

    target = topics.create(queues=2)
    sent = replay(lake, topics.namesrv, tmp_path / "ledger", topic=topic, to=target, storage=keys, spark=spark)
    assert sent.messages == 3010
    if name == "delta":
        assert by_deltalake(lake, s3) == [(queue, offset) for queue in (0, 1) for offset in range(1500 + 10 * queue)]
        with pytest.raises(ArchiveError, match="contains a Delta table"):
            open_archive(lake)
    else:
        assert sum(of.rows for of in open_archive(lake).queues().values()) == 3010


def test_credentials_of_a_session_reach_tasks_and_nobody_else(
    spark: Any, topics: Topics, s3: S3Server, tmp_path: Path
) -> None:
    """They are in no option of a source, no plan, no report, no object and no error."""
    lake = f"s3://lake/archive-{uuid.uuid4().hex}"
    topic = topics.fill(500, queues=1)
    report = archive(topics.namesrv, topic, lake, storage=options(s3), spark=spark)
    assert report.rows == 500
    frame = read_archive(spark, lake, options(s3))
    assert frame.count() == 500
    plan = frame._jdf.queryExecution().toString()
    said = [str(report.to_dict()), report.render(), plan, repr(ArchiveLog(lake, storage=options(s3)).storage)]
    client = s3.client()
    for found in client.list_objects_v2(Bucket="lake", Prefix=lake.removeprefix("s3://lake/"))["Contents"]:
        content = client.get_object(Bucket="lake", Key=found["Key"])["Body"].read()
        said.append(content.decode("latin-1"))
    wrong = options(s3) | {"secretAccessKey": "another-secret"}
    with pytest.raises(Exception, match="does not match the access key") as failed:
        archive(topics.namesrv, topic, lake, storage=wrong, spark=spark)
    said.append(str(failed.value))
    assert not any(secret in text for text in said for secret in (SECRET_KEY, "another-secret"))


@pytest.mark.crash
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("name", FORMATS)
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(
    spark: Any, topics: Topics, s3: S3Server, lake: str, name: str
) -> None:
    topic = topics.fill(12_000, queues=3)
    run_until_killed(spark, *driver_words(topics, topic, (lake, "-"), "before-commit", 1, name))
    assert sum(of.rows for of in ArchiveLog(lake).queues()) == MOST
    run_until_killed(spark, *driver_words(topics, topic, (lake, "-"), "after-commit", 0, name))
    assert sum(of.rows for of in ArchiveLog(lake).queues()) == 2 * MOST
    left = vacuum(lake)
    assert left.files_before > 0, "the files of the first driver, whose epoch is over"

    with attached(spark, *driver_words(topics, topic, (lake, "-"), "never", 0, name)):
        wait_for(lambda: sum(of.rows for of in ArchiveLog(lake).queues()) > 2 * MOST, "it commits", PATIENCE_S)
    assert archive(topics.namesrv, topic, lake, storage=options(s3), spark=spark).finished
    demand_exactly(spark, lake, options(s3), {0: 4000, 1: 4000, 2: 4000})
    assert audit(topics.namesrv, topic, archive=lake, storage=options(s3), spark=spark).disagreements == ()
    vacuum(lake)
    demand_exactly(spark, lake, options(s3), {0: 4000, 1: 4000, 2: 4000})


@pytest.mark.crash
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("name", FORMATS)
def test_a_paused_driver_that_wakes_up_ends_with_a_sentence(
    spark: Any, topics: Topics, s3: S3Server, lake: str, name: str
) -> None:
    topic = topics.fill(12_000, queues=3)
    paused = start_driver(*driver_words(topics, topic, (lake, "-"), "never", 0, name), is_fork=False)
    try:
        wait_for(lambda: sum(of.rows for of in ArchiveLog(lake).queues()) > 0, "it commits", PATIENCE_S)
        os.killpg(paused.pid, signal.SIGSTOP)
        assert archive(topics.namesrv, topic, lake, storage=options(s3), spark=spark).finished
        os.killpg(paused.pid, signal.SIGCONT)
        assert paused.wait() in (0, 1), "it had finished, or could not commit"
    finally:
        end_group(paused)
    demand_exactly(spark, lake, options(s3), {0: 4000, 1: 4000, 2: 4000})


def process_of(port: int) -> int:
    """The process that has connected from a port of this machine."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [inode] = [words[9] for words in sockets if words[1].endswith(f":{port:04X}")]
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink().name == f"socket:[{inode}]":
                return int(link.parts[2])
    raise LookupError(f"no process has the port {port}")


@pytest.mark.crash
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_python_worker_killed_while_it_uploads_a_file(
    spark: Any, topics: Topics, s3: S3Server, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats its task, whose files have other names; the driver notices nothing."""
    topic = topics.create(queues=2)
    for queue_id in (0, 1):
        for _ in range(5):
            topics.send(topic, queue_id, [os.urandom(100_000) for _ in range(30)])  # together an upload in parts
    killed: list[int] = []

    def kill(method: str, path: str) -> bool:
        if method != "PUT" or "partNumber=" not in path or killed:
            return False
        killed.append(process_of(faults.client_port))
        os.kill(killed[0], signal.SIGKILL)
        return True

    with faulty(s3.endpoint) as (endpoint, faults):
        monkeypatch.setenv("AWS_ENDPOINT", endpoint)
        faults.fail("cut", 1, kill)
        process = start_driver(*driver_words(topics, topic, (lake, "-"), "never", 0), is_fork=False)
        try:
            assert process.wait() == 0
        finally:
            end_group(process)
    assert killed
    assert killed != [process.pid]
    demand_exactly(spark, lake, options(s3), {0: 150, 1: 150})


@pytest.fixture
def proxied(s3: S3Server) -> Iterator[tuple[dict[str, str], Faults]]:
    """Options of a storage behind a proxy that fails."""
    with faulty(s3.endpoint) as (endpoint, faults):
        yield options(s3) | {"endpoint": endpoint}, faults


def _is_method(wanted: str, method: str, _path: str) -> bool:
    return method == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_a_server_that_fails_for_a_while_costs_only_time(
    spark: Any, topics: Topics, proxied: tuple[dict[str, str], Faults], name: str
) -> None:
    storage, faults = proxied
    lake = f"s3://lake/archive-{uuid.uuid4().hex}"
    topic = topics.create(queues=1)
    sent = 0
    for kind, times, method in (("503", 8, "PUT"), ("cut", 2, "PUT"), ("lost", 2, "PUT"), ("500", 3, "POST")):
        for _ in range(4):
            topics.send(topic, 0, [os.urandom(100_000) for _ in range(30)])
        sent += 120
        faults.fail(kind, times, partial(_is_method, method))
        report = archive(topics.namesrv, topic, lake, table_format=name, storage=storage, spark=spark)
        assert faults.left == 0, f"{kind} was met"
        assert report.finished
    demand_exactly(spark, lake, storage, {0: sent})


def test_the_command_archives_into_a_bucket(
    spark: Any, topics: Topics, s3: S3Server, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the credentials, as for Spark's own ``s3a`` tables."""
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    hadoop = spark._jsc.hadoopConfiguration()
    names = {"fs.s3a.access.key": ACCESS_KEY, "fs.s3a.secret.key": SECRET_KEY, "fs.s3a.endpoint": s3.endpoint}
    names["fs.s3a.path.style.access"] = "true"
    topic = topics.fill(30, queues=1)
    words = ["archive", "-n", topics.namesrv, "--topic", topic, "--storage", "region=us-east-1", "--vacuum"]
    try:
        for name, value in names.items():
            hadoop.set(name, value)
        done = CliRunner().invoke(command, [*words, "--to", lake], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, 0), done.output
        assert lake in done.stdout
        table = CliRunner().invoke(command, [*words, "--to", f"{lake}-2", "--format", "delta"], standalone_mode=False)
        assert (table.exception, table.return_value) == (None, 0), table.output
        assert len(by_deltalake(f"{lake}-2", s3)) == 30
        refused = CliRunner().invoke(command, [*words, "--to", f"{lake}-3", "--format", "iceberg"])
        assert (refused.exit_code, "needs the name of a catalog" in refused.output) == (2, True), refused.output
        assert "for a catalog of type rest, glue, hive or sql (PostgreSQL)" in " ".join(refused.output.split())
    finally:
        for name in names:
            hadoop.unset(name)
    wrong = CliRunner().invoke(command, [*words, "--to", lake, "--storage", "secretAccessKey=x"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["gcs", "azure", "hdfs"])
def test_the_job_in_stores_of_other_kinds(
    spark: Any, topics: Topics, servers: Callable[[str], Storage], kind: str, name: str
) -> None:
    storage = servers(kind).below(f"archive-{uuid.uuid4().hex}")
    keys = storage.options.texts() if isinstance(storage, ObjectStorage) else {}
    topic = topics.fill(200, queues=2)
    for expected in (200, 3):
        done = archive(topics.namesrv, topic, storage.url, table_format=name, storage=keys, spark=spark)
        assert (done.rows, done.finished) == (expected, True)
        topics.send(topic, 1, [b"more"] * (3 if expected == 200 else 0))
    demand_exactly(spark, storage.url, keys, {0: 100, 1: 103})
    assert audit(topics.namesrv, topic, archive=storage.url, storage=keys, spark=spark).disagreements == ()


def test_two_runs_at_once_end_with_one_archive(spark: Any, topics: Topics, s3: S3Server, lake: str) -> None:
    """The earlier one could not commit any more; it names the reason."""
    topic = topics.fill(300, queues=1)
    log = ArchiveLog(lake, storage=options(s3))
    with log.locked():
        assert archive(topics.namesrv, topic, lake, storage=options(s3), spark=spark).rows == 300
        with pytest.raises(ArchiveError, match="another job has taken over the archive"):
            log.append(Batch("q", 0, [], []))
