"""Stores in an S3 server: the same rows as from the disk, few requests, and no secret in what Spark writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.spark.access.test_secrets import plans
from tests.spark.store_files import bad_records, damage, rows_of, write_store
from tests.storage.servers.faults import Faults, faulty
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, S3Server, seaweed

from cometmq.backup.create import Options, create_backup
from cometmq.backup.opening import open_backup
from cometmq.spark.errors import OptionError, StoreReadError
from cometmq.spark.object_stores import storage_options
from cometmq.spark.store import scan
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.scan import splits
from cometmq.storage import StorageError, open_storage

MESSAGES = 3000
SEGMENT = 1 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server."""
    with seaweed(tmp_path_factory.mktemp("seaweed")) as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several files of the log and of each of three queues."""
    root = tmp_path_factory.mktemp("store") / "store"
    write_store(root, MESSAGES, body=lambda number: b"%d" % number * 400, segment=SEGMENT)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"T": {}}}))
    return root


def upload(root: Path, url: str, s3: S3Server) -> None:
    """Copy a store's files, as ``aws s3 cp --recursive`` does."""
    storage = open_storage(url, s3.options)
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_size:
            storage.put(path.relative_to(root).as_posix(), path.read_bytes())


@pytest.fixture(scope="module", params=["copy", "backup"])
def url(request: pytest.FixtureRequest, store: Path, s3: S3Server) -> str:
    """The URL of a copy or a backup of the store."""
    url = f"s3://lake/{request.param}/2026-11-28"
    if request.param == "copy":
        upload(store, url, s3)
    else:
        # The second backup shares the sealed files of the first.
        create_backup(Options(store, open_backup(f"{url}-before", s3.options)))
        create_backup(Options(store, open_backup(url, s3.options)))
    return url


def storage_of(endpoint: str) -> dict[str, str]:
    """The options for the server as options of the reader."""
    return {
        "storage.endpoint": endpoint,
        "storage.region": "us-east-1",
        "storage.accessKeyId": ACCESS_KEY,
        "storage.secretAccessKey": SECRET_KEY,
    }


@pytest.mark.parametrize("parts", [1, 20])
def test_the_rows_are_those_on_the_disk(store: Path, url: str, s3: S3Server, parts: int) -> None:
    options = {"minPartitions": parts, "topic": "T"}
    local = rows_of(store, **options)
    assert len(local) == MESSAGES
    assert rows_of(url, **options, **storage_of(s3.endpoint)) == local


def test_the_log_is_cut_where_it_is_cut_on_the_disk(store: Path, url: str, s3: S3Server) -> None:
    options = {"minPartitions": "30", "topic": "T"}
    local = splits(parse_store_options({"path": str(store)} | options))
    there = splits(parse_store_options({"path": url} | options | storage_of(s3.endpoint)))
    assert [(part.begin, part.end) for part in there] == [(part.begin, part.end) for part in local]
    assert len(local) >= 25


def test_a_store_without_queues_is_read_by_its_log_alone(store: Path, s3: S3Server) -> None:
    upload(store / "commitlog", "s3://lake/log/only", s3)
    found = rows_of("s3://lake/log/only", topic="T", **storage_of(s3.endpoint))
    assert sorted(found) == sorted(rows_of(store, topic="T"))


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[tuple[str, Faults]]:
    """A proxy before the server."""
    with faulty(s3.endpoint) as found:
        yield found


@pytest.mark.parametrize("kind", ["503", "cut", "lost"])
def test_requests_that_fail_are_repeated(store: Path, url: str, proxy: tuple[str, Faults], kind: str) -> None:
    endpoint, faults = proxy
    faults.fail(kind, 5)
    assert rows_of(url, topic="T", **storage_of(endpoint)) == rows_of(store, topic="T")
    assert not faults.left


def test_requests_and_bytes_are_bounded(
    store: Path, url: str, proxy: tuple[str, Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_RECORD_BYTES", 4096)
    endpoint, faults = proxy
    rows_of(url, topic="T", minPartitions=20, **storage_of(endpoint))
    log = [request for request in faults.seen if "GET" in request]
    parts = splits(parse_store_options({"path": str(store), "topic": "T", "minPartitions": "20"}))
    # By part: its range, a few blocks of a queue to find its end, and the check of the record there; the rest are
    # tables, lists and the last blocks of the queues.
    assert len(log) < len(parts) * 3 + 20, "\n".join(log)
    assert faults.sent_bytes < sum(part.end - part.begin for part in parts) * 1.1
    assert len([request for request in faults.seen if "list-type" in request]) < 10


def test_only_the_range_of_a_split_is_read(url: str, proxy: tuple[str, Faults]) -> None:
    endpoint, faults = proxy
    options = parse_store_options({"path": url, "useConsumeQueue": "false", **storage_of(endpoint)})
    [first, *_] = splits(options)
    faults.sent_bytes = 0
    faults.seen.clear()
    assert sum(len(found) for found in scan.sound_records(first, None)) > 400
    assert len(faults.seen) == 1
    assert faults.sent_bytes <= SEGMENT


def test_damage_is_that_on_the_disk(store: Path, s3: S3Server, tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = write_store(root, 900, body=lambda number: b"%050d" % number * 10)
    for number, (at, data) in enumerate([(88, b"\xff\xff"), (0, bytes(120)), (0, b"\0\0\4\0"), (4, b"\0\0\0\0")]):
        damage(root, offsets[150 + 200 * number] + at, data)
    upload(root, "s3://lake/damaged", s3)
    with pytest.raises(StoreReadError, match=r"s3://lake/damaged/commitlog/0+: the record at log offset .* is damaged"):
        rows_of("s3://lake/damaged", **storage_of(s3.endpoint))
    for parts in (1, 16):
        here, there = tmp_path / f"here-{parts}", tmp_path / f"there-{parts}"
        options = {"minPartitions": parts, **storage_of(s3.endpoint)}
        local = rows_of(root, badRecordsPath=here, **options)
        assert len(local) < 900
        assert rows_of("s3://lake/damaged", badRecordsPath=there, **options) == local
        kept = ("logOffset", "size", "reason", "data")
        assert [[bad[name] for name in kept] for bad in bad_records(there)] == [
            [bad[name] for name in kept] for bad in bad_records(here)
        ]


def test_files_that_the_broker_made_ahead_are_left_out(s3: S3Server, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_store(root, 100, body=lambda number: b"%050d" % number)
    (root / "commitlog" / f"{SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    upload(root, "s3://lake/ahead", s3)
    options = parse_store_options({"path": "s3://lake/ahead", **storage_of(s3.endpoint)})
    assert [part.file.start for part in splits(options)] == [0]


def test_a_part_of_a_backup_is_refused_by_the_name_of_the_whole(store: Path, s3: S3Server) -> None:
    create_backup(Options(store, open_backup("s3://lake/parts/one", s3.options)))
    for part in ("store", "store/commitlog"):
        with pytest.raises(StoreReadError, match=r"only some files of a backup .use s3://lake/parts/one.$"):
            rows_of(f"s3://lake/parts/one/{part}", **storage_of(s3.endpoint))


def test_a_local_backup_is_read_by_its_directory(store: Path, tmp_path: Path) -> None:
    create_backup(Options(store, open_backup(tmp_path / "one")))
    assert rows_of(tmp_path / "one", topic="T") == rows_of(store, topic="T")


def test_wrong_options_and_rights_are_named_without_secrets(url: str, s3: S3Server) -> None:
    wrong = storage_of(s3.endpoint) | {"storage.secretAccessKey": "zq7vSales4secret"}
    with pytest.raises(StorageError, match="secret key does not match") as raised:
        rows_of(url, **wrong)
    assert "zq7vSales4" not in str(raised.value)
    with pytest.raises(OptionError, match=r"did you mean storage\.endpoint"):
        rows_of(url, **{"storage.endpont": "http://x"})
    twice = {"storage.sasToken": "zq7vSales4a", "STORAGE.SASTOKEN": "zq7vSales4b"}
    with pytest.raises(OptionError, match=r"is given twice$"):
        rows_of(url, **twice)
    with pytest.raises(StoreReadError, match="has no log files"):
        rows_of("s3://lake/nothing/there", **storage_of(s3.endpoint))


spark_only = pytest.mark.spark


@spark_only
def test_spark_reads_it_and_writes_no_secret(
    spark: Any, event_log: Path, store: Path, url: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = (
        spark.read.format("rocketmq_store").options(topic="T", minPartitions="8", **storage_of(s3.endpoint)).load(url)
    )
    local = spark.read.format("rocketmq_store").option("topic", "T").load(str(store))
    columns = ("topic", "queueId", "queueOffset", "body", "msgId")
    assert frame.select(*columns).exceptAll(local.select(*columns)).count() == 0
    assert frame.count() == MESSAGES
    assert SECRET_KEY not in plans(frame)
    assert not [file for file in event_log.rglob("*") if file.is_file() and SECRET_KEY.encode() in file.read_bytes()]


@spark_only
def test_the_options_of_a_session_are_those_of_hadoop(spark: Any, s3: S3Server) -> None:
    hadoop = spark._jsc.hadoopConfiguration()
    keys = {
        "fs.s3a.endpoint": s3.endpoint,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.bucket.lake.secret.key": SECRET_KEY,
    }
    for name, value in keys.items():
        hadoop.set(name, value)
    try:
        found = storage_options("s3a://lake/x", {"region": "us-east-1"}, spark=spark)
        assert found == storage_of(s3.endpoint)
        assert storage_options("s3a://other/x", {"endpoint": "http://y"}, spark=spark)["storage.endpoint"] == "http://y"
        assert storage_options("/data/store", {"endpoint": "http://y"}, spark=spark) == {}
    finally:
        for name in keys:
            hadoop.unset(name)


@spark_only
def test_jobs_read_it(store: Path, url: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    cometmq = CommandLine("127.0.0.1:1")
    where = ("--store", url, "--storage", f"endpoint={s3.endpoint}", "--broker-name", "b")
    lake = tmp_path / "lake"
    made = cometmq("pipeline", "archive", *where, "--to", str(lake), "-o", "json")
    assert made.code == 0, made.err
    assert made.json()["rows"] == MESSAGES
    skew = cometmq("pipeline", "skew", *where, "--topic", "T", "-o", "json")
    assert skew.code == 0, skew.err
    delay = cometmq("pipeline", "delay", *where, "-o", "json")
    assert delay.code == 0, delay.err
    secret = cometmq("pipeline", "skew", *where, "--topic", "T", "--storage", "secretAccessKey=TOPSECRET")
    assert secret.code == 2
    assert "must not hold" in secret.err
    assert "TOPSECRET" not in secret.err
    missing = cometmq("pipeline", "skew", "--store", str(tmp_path / "absent"), "--topic", "T")
    assert missing.code == 2
    assert "does not exist" in missing.err
