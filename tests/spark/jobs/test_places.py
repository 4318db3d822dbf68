"""Ledgers, key indexes, masked copies, bad records, tables and reports in an S3 server, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from click.testing import CliRunner
from tests.helpers.waiting import wait_for
from tests.spark.access.test_secrets import plans
from tests.spark.drivers import end_group, run_until_killed, start_driver
from tests.spark.jobs.replay.test_job import origins
from tests.spark.sinking import stored
from tests.spark.store_files import bad_records, damage, rows_of, write_store
from tests.spark.topics import Topics
from tests.storage.servers.faults import Faults, faulty
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, S3Server

from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import ArchiveLog, read_archive
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs import key_index
from cometmq.spark.jobs.archive.checkpoint import Checkpoint
from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.key_index import build_key_index, find_by_key
from cometmq.spark.jobs.mask.job import mask, mask_to_topic
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.jobs.replay.ledger import ReplayLedger
from cometmq.spark.jobs.replay.sender import SENT_DDL
from cometmq.spark.jobs.task_files import read_table
from cometmq.spark.records.queues import Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options
from cometmq.storage import Storage, open_storage

pytestmark = pytest.mark.spark
PATIENCE_S = 120


@dataclass(frozen=True)
class Bucket:
    """A new place in the bucket. New processes have its credentials in their environment, as in a pod."""

    url: str
    server: S3Server

    @property
    def options(self) -> dict[str, str]:
        """The options of its storage, as a session or a program gives them."""
        return {"endpoint": self.server.endpoint, "accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY}

    def storage(self, directory: str) -> Storage:
        """The storage of a directory in it."""
        return open_storage(f"{self.url}/{directory}", self.server.options)


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return Bucket(f"s3://lake/{uuid.uuid4().hex}", s3)


@pytest.fixture
def proxied(bucket: Bucket) -> Iterator[tuple[dict[str, str], Faults]]:
    """Options of the storage behind a proxy that fails."""
    with faulty(bucket.server.endpoint) as (endpoint, faults):
        yield bucket.options | {"endpoint": endpoint}, faults


def lake_of(topics: Topics, spark: Any, bucket: Bucket, messages: int) -> tuple[str, str]:
    """A topic of three queues, and the URL of its archive."""
    topic, lake = topics.fill(messages, queues=3), f"{bucket.url}/lake"
    assert archive(topics.namesrv, topic, lake, storage=bucket.options, spark=spark).rows == messages
    return topic, lake


def demand_once(topics: Topics, copy: str, messages: int) -> None:
    """Every message of an archive is in the topic once, and in its order."""
    found = [origins(queue) for queue in stored(topics, copy, 3)]
    assert found == [[(number, offset) for offset in range(messages // 3)] for number in range(3)]


# Replays ---------------------------------------------------------------------------------------------


def test_a_replay_goes_on_by_a_ledger_in_a_bucket(spark: Any, topics: Topics, bucket: Bucket) -> None:
    topic, lake = lake_of(topics, spark, bucket, 900)
    copy, ledger, options = topics.create(3), f"{bucket.url}/ledger", bucket.options
    Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic})).commit_offsets(
        "readers", {Queue(topic, topics.broker_name, 1): 42}
    )
    send = partial(replay, lake, topics.namesrv, ledger, to=copy, storage=options, spark=spark)
    assert send(dry_run=True).messages == 900
    assert not list(bucket.storage("ledger").list_objects()), "a dry run writes nothing"
    done = send(step_offsets=300, translate_groups=["readers"])
    assert (done.messages, done.found, len(done.steps), done.complete, done.ledger) == (900, 0, 3, True, ledger)
    assert {of.queue_id: (of.messages, of.first, of.next) for of in done.queues} == dict.fromkeys(
        range(3), (300, 0, 300)
    )
    assert {of.queue_id: of.offset for of in done.translated}[1] == 42
    assert (send().messages, send().earlier) == (0, 900)
    with pytest.raises(ArchiveError, match=r"the ledger s3://.* belongs to another replay: by_key differ"):
        send(by_key=True)
    demand_once(topics, copy, 900)
    kept = ReplayLedger(bucket.storage("ledger"))
    mapping = read_table(spark, kept.storage, kept.mapping_files(), SENT_DDL)
    assert mapping.where("toOffset = queueOffset AND toQueue = queueId AND NOT found").count() == 900


def replaying(topics: Topics, bucket: Bucket, copy: str) -> Any:
    """Start a driver that sends the archive to a topic."""
    return start_driver(*replay_words(topics, bucket, copy), "never", "500", is_fork=False)


def replay_words(topics: Topics, bucket: Bucket, copy: str) -> tuple[str, ...]:
    """The module of such a driver, and its first arguments."""
    places = f"{bucket.url}/lake", f"{bucket.url}/ledger"
    return "tests.spark.jobs.replay.replaying", topics.namesrv, *places, copy


def ends_of(topics: Topics, copy: str) -> Callable[[], int]:
    """Counts the messages of a topic of three queues."""
    queues = [Queue(copy, topics.broker_name, number) for number in range(3)]
    cluster = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": copy}))
    return lambda: sum(held.end for held in cluster.bounds(queues).values())


def family_of(driver: int) -> tuple[set[int], set[int]]:
    """A driver with everything that it has started, and the Python workers among them."""
    parents, daemons = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (path / "cmdline").read_bytes():
                daemons.add(int(path.name))
        except OSError:  # it has ended
            continue
    family = {driver}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family, {pid for pid in family & daemons if parents[pid] in daemons}


@pytest.fixture
def plain_python(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers start their Python workers themselves, so that these can be found."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.crash
@pytest.mark.timeout(8 * PATIENCE_S)
@pytest.mark.usefixtures("plain_python")
def test_drivers_and_workers_that_are_killed_send_everything_once(spark: Any, topics: Topics, bucket: Bucket) -> None:
    _, lake = lake_of(topics, spark, bucket, 9000)
    copy = topics.create(3)
    there = ends_of(topics, copy)
    run_until_killed(spark, *replay_words(topics, bucket, copy), "before-commit", "0")
    assert there() > ReplayLedger(bucket.storage("ledger")).steps()[0].sent, "step 1 is sent and not done"
    for victim in ("workers", "driver"):
        driver, begun = replaying(topics, bucket, copy), there()
        try:
            wait_for(lambda begun=begun: there() >= begun + 150, "it sends", PATIENCE_S)  # type: ignore[misc]
            if victim == "workers":
                workers = family_of(driver.pid)[1]
                assert workers
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                now = there()
                wait_for(lambda now=now: there() >= now + 300, "other workers go on", PATIENCE_S)  # type: ignore[misc]
        finally:
            end_group(driver)
    assert there() < 9000
    done = replay(lake, topics.namesrv, f"{bucket.url}/ledger", to=copy, storage=bucket.options, spark=spark)
    assert done.found > 0
    assert done.messages + done.earlier == 9000
    demand_once(topics, copy, 9000)
    kept = ReplayLedger(bucket.storage("ledger"))
    mapping = read_table(spark, kept.storage, kept.mapping_files(), SENT_DDL)
    assert mapping.count() == mapping.select("queueId", "queueOffset").distinct().count() == 9000


@pytest.mark.crash
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.usefixtures("plain_python")
def test_a_paused_driver_that_wakes_up_sends_nothing_more(spark: Any, topics: Topics, bucket: Bucket) -> None:
    _, lake = lake_of(topics, spark, bucket, 9000)
    copy = topics.create(3)
    there = ends_of(topics, copy)
    paused = replaying(topics, bucket, copy)
    try:
        wait_for(lambda: there() >= 300, "it sends", PATIENCE_S)
        family = family_of(paused.pid)[0]
        for member in family:  # its workers have process groups of their own
            os.kill(member, signal.SIGSTOP)
        assert there() < 2000, "in the first step"
        ledger = f"{bucket.url}/ledger"
        done = replay(lake, topics.namesrv, ledger, to=copy, storage=bucket.options, spark=spark)
        assert done.messages + done.earlier == 9000
        for member in family:
            os.kill(member, signal.SIGCONT)
        assert paused.wait() == 1, "it has failed"
    finally:
        end_group(paused)
    demand_once(topics, copy, 9000)


def _is_write(method: str, path: str) -> bool:
    return method == "PUT" and "_probe" not in path


def test_a_server_that_fails_for_a_while_costs_only_time(
    spark: Any, topics: Topics, bucket: Bucket, proxied: tuple[dict[str, str], Faults]
) -> None:
    storage, faults = proxied
    _, lake = lake_of(topics, spark, bucket, 300)
    for kind, times in (("503", 8), ("cut", 2), ("lost", 3)):
        copy, place = topics.create(3), f"{bucket.url}/{kind}"
        faults.fail(kind, times, _is_write)
        done = replay(lake, topics.namesrv, f"{place}/ledger", to=copy, storage=storage, spark=spark, step_offsets=200)
        assert (done.messages, done.complete, faults.left) == (300, True, 0), kind
        demand_once(topics, copy, 300)
        faults.fail(kind, times, _is_write)
        assert build_key_index(lake, f"{place}/index", storage=storage, spark=spark).messages == 300
        assert faults.left == 0, kind
    assert build_key_index(lake, f"{bucket.url}/lost/index", storage=storage, spark=spark).messages == 0


# Key indexes -----------------------------------------------------------------------------------------


@pytest.fixture
def keyed(spark: Any, bucket: Bucket, tmp_path: Path) -> tuple[str, str]:
    """The URLs of an archive of 300 messages with the keys k0 to k299, and of a new index."""
    write_store(tmp_path / "store", 300, body=lambda number: b"body %d" % number)
    lake = f"{bucket.url}/lake"
    archive_store(tmp_path / "store", lake, broker_name="b", storage=bucket.options, spark=spark)
    return lake, f"{bucket.url}/index"


def test_an_index_in_a_bucket_grows_and_finds(
    spark: Any, bucket: Bucket, keyed: tuple[str, str], tmp_path: Path
) -> None:
    keys = bucket.options
    index = partial(build_key_index, *keyed, storage=keys, spark=spark)
    assert (index(dry_run=True).keys, list(bucket.storage("index").list_objects())) == (300, [])
    bucket.storage("index").put("run=0/bucket=3/part-of-a-killed-run.parquet", b"x")
    assert (index().messages, index().messages) == (300, 0)
    write_store(tmp_path / "second", 30, body=lambda number: b"second %d" % number)
    archive_store(tmp_path / "second", keyed[0], broker_name="c", storage=keys, spark=spark)
    assert [(of.topic, of.messages, of.keys) for of in index().topics] == [("T", 30, 30)]
    found = find_by_key(*keyed, "T", "k7", storage=keys)
    assert [of.body for of in found] == [b"body 7", b"second 7"]
    assert find_by_key(*keyed, "T", "k999", storage=keys) == []
    named = [
        path
        for run in key_index._runs(bucket.storage("index")).values()
        for of in (run.files or {}).values()
        for path in of
    ]
    there = {found.key for found in bucket.storage("index").list_objects()}
    assert there == {*named, "run=0/_indexed.json", "run=1/_indexed.json"}, "what killed runs have left is gone"


def test_of_two_runs_at_once_one_counts(
    spark: Any, bucket: Bucket, keyed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = key_index._write

    def late(*given: Any) -> Any:
        monkeypatch.setattr(key_index, "_write", write)
        assert build_key_index(*keyed, storage=bucket.options, spark=spark).messages == 300
        return write(*given)

    monkeypatch.setattr(key_index, "_write", late)
    with pytest.raises(ArchiveError, match=r"another job has written s3://.*run=0/_indexed\.json"):
        build_key_index(*keyed, storage=bucket.options, spark=spark)
    assert len(find_by_key(*keyed, "T", "k7", storage=bucket.options)) == 1


# Masked copies ---------------------------------------------------------------------------------------

RULES = rules_from_options(["$.phone=mask"])


def test_a_masked_copy_in_a_bucket_goes_on_and_is_sent(
    spark: Any, topics: Topics, bucket: Bucket, tmp_path: Path
) -> None:
    topic, copy = topics.create(1), topics.create(1)
    topics.send(topic, 0, [b'{"phone": "0123-%d"}' % number for number in range(60)])
    topics.send(topic, 0, [b"no JSON"])
    source = MessageSource(topics.namesrv, storage=bucket.options)
    to = f"{bucket.url}/masked"
    done = mask(source, topic, RULES, to, step_offsets=20, spark=spark)
    assert (done.messages, done.to, done.apart) == (60, to, {"its body is not JSON": 1})
    topics.send(topic, 0, [b'{"phone": "9"}'])
    assert mask(source, topic, RULES, to, spark=spark).messages == 1
    bodies = {bytes(row.body) for row in read_archive(spark, to, bucket.options).collect()}
    assert bodies == {b'{"phone":"******"}', b'{"phone":"*******"}', b'{"phone":"*"}'}
    [lines] = bucket.storage("masked/_mask/apart").list_objects()
    assert json.loads(bucket.storage("masked/_mask/apart").read(lines.key))["queueOffset"] == 60
    with pytest.raises(ArchiveError, match="a copy with other options: rules differ"):
        mask(source, topic, rules_from_options(["$.phone=drop"]), to, spark=spark)
    sent = mask_to_topic(source, topic, RULES, f"{bucket.url}/work", topics.namesrv, copy, spark=spark)
    assert sent.replayed is not None
    assert (sent.replayed.messages, len(stored(topics, copy, 1)[0])) == (61, 61)
    with pytest.raises(OptionError, match="a key store is an SQLite database, which cannot be at s3://"):
        mask(source, topic, RULES, to, keys=f"{bucket.url}/keys")


def test_encrypted_values_of_a_copy_in_a_bucket_are_revealed(spark: Any, bucket: Bucket, tmp_path: Path) -> None:
    secret = tmp_path / "master.key"
    secret.write_text("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
    write_store(tmp_path / "store", 6, body=lambda number: b'{"user": "u%d", "phone": "0%d"}' % (number, number))
    source = MessageSource(store=tmp_path / "store", broker_name="b", storage=bucket.options)
    rules, keys = rules_from_options(["$.phone=encrypt"], subject="$.user"), tmp_path / "keys"
    to = f"{bucket.url}/masked"
    assert mask(source, "T", rules, to, keys=keys, master_key_file=secret, spark=spark).messages == 6
    reveal = ["mask", "reveal", "--archive", to, "--keys", str(keys), "--master-key-file", str(secret)]
    reveal += ["--storage", f"endpoint={bucket.server.endpoint}"]
    shown = CliRunner().invoke(command, reveal, standalone_mode=False)
    assert (shown.exception, shown.return_value) == (None, 0), shown.output
    bodies = sorted(json.loads(line)["body"] for line in shown.stdout.splitlines())
    assert bodies == [f'{{"user": "u{n}", "phone": "0{n}"}}' for n in range(6)]


# Bad records, tables and reports ---------------------------------------------------------------------


def test_bad_records_go_to_a_bucket(spark: Any, topics: Topics, bucket: Bucket, tmp_path: Path) -> None:
    """From a store, and bodies that cannot be decompressed from brokers, also by the archive job."""
    offsets = write_store(tmp_path / "store", 90, body=lambda number: b"%050d" % number)
    damage(tmp_path / "store", offsets[40] + 88, b"\xff\xff")
    options = {f"storage.{name}": value for name, value in bucket.options.items()}
    here = rows_of(tmp_path / "store", badRecordsPath=tmp_path / "bad")
    assert rows_of(tmp_path / "store", badRecordsPath=f"{bucket.url}/bad", **options) == here
    there = bucket.storage("bad")
    lines = [json.loads(line) for found in there.list_objects() for line in there.read(found.key).splitlines()]
    assert lines == bad_records(tmp_path / "bad")

    topic = topics.create(1)
    topics.send(topic, 0, [b"good"])
    topics.send_one(topic, 0, b"not packed", sys_flag=0x1 | 0x300)
    topics.await_messages(topic, 0, 2)
    given = {"badBodies": "null", "badRecordsPath": f"{bucket.url}/bodies"}
    frame = spark.read.format("rocketmq").options(namesrvAddr=topics.namesrv, topic=topic, **given, **options).load()
    assert frame.where("body IS NULL").count() == 1
    given["badRecordsPath"] = f"{bucket.url}/archived"
    done = archive(topics.namesrv, topic, f"{bucket.url}/lake", options=given, storage=bucket.options, spark=spark)
    assert done.rows == 2
    for name in ("bodies", "archived"):
        [found] = bucket.storage(name).list_objects()
        assert json.loads(bucket.storage(name).read(found.key))["queueOffset"] == 1, name
    assert SECRET_KEY not in plans(frame)


def test_tables_and_reports_go_to_a_bucket(
    spark: Any, topics: Topics, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, lake = lake_of(topics, spark, bucket, 300)
    detail = f"{bucket.url}/detail"
    audit(topics.namesrv, topic, archive=lake, detail=detail, storage=bucket.options, spark=spark)
    table = bucket.storage("detail")
    listed = [file["path"] for file in json.loads(table.read("_files.json"))]
    assert sorted(listed) == sorted(found.key for found in table.list_objects() if found.key != "_files.json")
    rows = (
        read_table(spark, table, listed, "topic string, brokerName string, queueId int, stored bigint") if 0 else None
    )
    assert rows is None
    with pytest.raises(OptionError, match="already exists"):
        audit(topics.namesrv, topic, detail=detail, storage=bucket.options, spark=spark)

    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    words = ["skew", "-n", topics.namesrv, "--topic", topic, "--storage", f"endpoint={bucket.server.endpoint}"]
    shown = CliRunner().invoke(command, [*words, "--report", f"{bucket.url}/pages/skew.html"], standalone_mode=False)
    assert (shown.exception, shown.return_value) == (None, 0), shown.output
    assert b"300" in bucket.storage("pages").read("skew.html")
    for page, reason in ((str(Path.cwd()), "is a directory"), ("ftp://a/b", "unknown scheme ftp")):
        refused = CliRunner().invoke(command, [*words, "--report", page])
        assert (refused.exit_code, reason in refused.output) == (2, True), refused.output


def test_credentials_are_in_no_object_plan_event_report_or_error(
    spark: Any, event_log: Path, topics: Topics, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_REGION"):
        monkeypatch.delenv(name)
    _, lake = lake_of(topics, spark, bucket, 300)
    copy, keys = topics.create(3), bucket.options
    sent = replay(lake, topics.namesrv, f"{bucket.url}/ledger", to=copy, storage=keys, spark=spark)
    indexed = build_key_index(lake, f"{bucket.url}/index", storage=keys, spark=spark)
    said = [str(report.to_dict()) + report.render() for report in (sent, indexed)]
    wrong = keys | {"secretAccessKey": "another-secret"}
    for call in (
        lambda: replay(lake, topics.namesrv, f"{bucket.url}/other", to=copy, storage=wrong, spark=spark),
        lambda: build_key_index(lake, f"{bucket.url}/other", storage=wrong, spark=spark),
        lambda: find_by_key(lake, f"{bucket.url}/other", "T", "k", storage=wrong),
    ):
        with pytest.raises(Exception, match="does not match the access key") as failed:
            call()
        said.append(str(failed.value))
    everything = bucket.storage("") if 0 else open_storage(bucket.url, bucket.server.options)
    said += [everything.read(found.key).decode("latin-1") for found in everything.list_objects()]
    said += [file.read_text("latin-1") for file in event_log.rglob("*") if file.is_file()]
    assert not any(secret in text for text in said for secret in (SECRET_KEY, "another-secret"))
    demand_once(topics, copy, 300)


def test_a_ledger_an_index_and_a_checkpoint_are_on_hdfs(
    spark: Any, topics: Topics, servers: Callable[[str], Storage]
) -> None:
    """Spark itself writes the checkpoint; the job reads it, also what a start that was killed left."""
    place = servers("hdfs").below(uuid.uuid4().hex)
    topic, copy, lake, at = topics.fill(300, queues=3), topics.create(3), f"{place.url}/lake", f"{place.url}/checkpoint"
    left = "offsets/.0.329e8fd3-ce10-42d8-beaa-17b682562b41.tmp"
    place.put(f"checkpoint/{left}", b"v1")
    assert archive(topics.namesrv, topic, lake, at, spark=spark).rows == 300
    assert place.read(f"checkpoint/_dead/0/{left}") == b"v1"
    found = Checkpoint(at)
    assert (found.query_id() is not None, found.last_committed_batch(), found.has_begun()) == (True, 0, True)
    topics.send(topic, 0, [b"more"] * 3)
    assert archive(topics.namesrv, topic, lake, at, spark=spark).rows == 3
    assert found.last_committed_batch() == 1
    for again in (303, 0):
        done = replay(lake, topics.namesrv, f"{place.url}/ledger", to=copy, spark=spark, step_offsets=200)
        assert (done.messages, done.found) == (again, 0)
    assert build_key_index(lake, f"{place.url}/index", spark=spark).messages == 303
    assert build_key_index(lake, f"{place.url}/index", spark=spark).messages == 0


def test_the_schemes_that_spark_lacks_are_named_with_what_to_do(
    spark: Any, topics: Topics, bucket: Bucket, tmp_path: Path
) -> None:
    """A checkpoint belongs to Spark, whose file systems for object stores are jars."""
    topic = topics.fill(3, queues=1)
    for url, reason in (
        (f"{bucket.url}/checkpoint", r"no file system for s3:// .leave out --checkpoint.*or use s3a://lake"),
        (f"s3a{bucket.url[2:]}/c", r"no file system for s3a:// .*--packages org\.apache\.hadoop:hadoop-aws:\d"),
    ):
        with pytest.raises(OptionError, match=reason):
            archive(topics.namesrv, topic, tmp_path / "lake", url, storage=bucket.options, spark=spark)
    assert ArchiveLog(tmp_path / "lake").queues() == []
