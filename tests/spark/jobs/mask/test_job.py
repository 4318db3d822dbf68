"""The mask job: masked copies of topics, archives and stores, each message once, and erasure by dropping keys."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.helpers.unpack import unpack
from tests.spark.conftest import RunExample
from tests.spark.drivers import run_until_killed
from tests.spark.jobs.mask.masking import RULES
from tests.spark.sinking import stored
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
from cometmq.cli.jobs.pipeline import command
from cometmq.message.properties import decode_properties
from cometmq.message.record import decode_record
from cometmq.spark.archives.log import read_archive, record_of
from cometmq.spark.errors import ArchiveError, OptionError, SparkSourceError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.mask.job import mask, mask_to_topic
from cometmq.spark.jobs.mask.keys import (
    MASTER_VARIABLE,
    KeyStore,
    Revealer,
    digest,
    master_key_place,
    revealed_messages,
)
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource

pytestmark = pytest.mark.spark

SECRET = "⟦secret⟧"
ENCRYPTED = rules_from_options(RULES, subject="$.userId")


def body(number: int) -> bytes:
    document = {"userId": f"user-{number % 3}", "phone": f"{SECRET}{number}", "email": SECRET, "n": number}
    return json.dumps(document, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def master_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "master.key"
    path.write_bytes(base64.b64encode(os.urandom(32)))
    return path


@pytest.fixture(scope="module")
def people(topics: Topics) -> str:
    """A topic of two queues: 300 messages with secrets in body and keys, and 4 that are no JSON."""
    topic = topics.create(2)
    for queue_id in range(2):
        bodies = [body(number) for number in range(queue_id, 300, 2)]
        topics.send(topic, queue_id, bodies, f"KEYS\x01{SECRET}-key\x02TAGS\x01TagA\x02own\x01kept\x02")
        topics.send(topic, queue_id, [f"no json {SECRET}".encode()] * 2)
    return topic


def rows_of(spark: Any, directory: Path) -> list[dict[str, Any]]:
    """The messages of a copy; each is checked to be the same in all its columns."""
    rows = [row.asDict() for row in read_archive(spark, directory).collect()]
    for row in rows:
        record = decode_record(record_of(row))  # checks the CRC of the body
        assert (record.body, len(record_of(row))) == (bytes(row["body"]), row["storeSize"])
        properties = decode_properties(row["propertiesText"])
        assert (row["properties"], row["keys"], row["tags"]) == (properties, properties.get("KEYS"), row["tags"])
    return rows


def nothing_is_left_of_secrets(directory: Path) -> None:
    """No file of a copy has a secret, in any form that it is stored in."""
    import pyarrow.parquet as pq

    for path in directory.rglob("*"):
        if path.suffix == ".parquet":
            assert SECRET not in str(pq.read_table(path).to_pylist())
        elif path.is_file():
            assert SECRET.encode() not in path.read_bytes()


def test_a_masked_archive_has_each_message_once_and_no_secret(
    spark: Any, topics: Topics, people: str, master_key: Path, tmp_path: Path
) -> None:
    source = MessageSource(topics.namesrv)
    secrets: dict[str, Any] = {"keys": tmp_path / "keys", "master_key_file": master_key, "hash_secret_file": master_key}
    steps: list[int] = []
    report = mask(
        source,
        people,
        ENCRYPTED,
        tmp_path / "copy",
        step_offsets=100,
        on_step=lambda step: steps.append(step.messages),
        spark=spark,
        **secrets,
    )
    assert (report.messages, report.total, report.finished, report.complete) == (300, 300, True, False)
    assert report.values == {"$.phone": 300, "keys": 300, "$.email": 300}
    assert report.apart == {"its body is not JSON": 4}
    assert len(steps) == 4
    assert sum(steps) == 300
    rows = rows_of(spark, tmp_path / "copy")
    assert sorted(json.loads(row["body"])["n"] for row in rows) == list(range(300))
    assert {row["properties"]["own"] for row in rows} == {"kept"}
    assert {row["keys"] for row in rows} == {digest(master_key.read_bytes(), f"{SECRET}-key")}
    nothing_is_left_of_secrets(tmp_path / "copy")
    apart = [
        json.loads(line) for path in (tmp_path / "copy/_mask/apart").iterdir() for line in path.read_text().splitlines()
    ]
    assert sorted((line["queueId"], line["queueOffset"]) for line in apart) == [(0, 150), (0, 151), (1, 150), (1, 151)]

    # Going on: nothing twice, and what has come since. Other rules are another copy.
    topics.send(people, 1, [body(300)])
    again = mask(source, people, ENCRYPTED, tmp_path / "copy", spark=spark, **secrets)
    assert (again.messages, again.total, again.complete) == (1, 301, True)
    with pytest.raises(ArchiveError, match="rules differ"):
        mask(source, people, rules_from_options(["$.phone=drop"]), tmp_path / "copy", spark=spark)

    # Erasure: whose key is dropped cannot be read any more, everybody else can.
    store = KeyStore(tmp_path / "keys", master_key_place(master_key))
    assert store.forget("user-1")
    revealer = Revealer(store.key_of)
    for message in revealed_messages(tmp_path / "copy", revealer, apart=lambda told: pytest.fail(told.reason)):
        document = json.loads(message["body"])
        erased = document["userId"] == "user-1"
        assert document["phone"].startswith("enc:1:") if erased else document["phone"] == f"{SECRET}{document['n']}"
    assert (revealer.opened, revealer.erased) == (201, 100)
    store.close()


def test_archives_and_stores_are_copied_too(
    spark: Any, topics: Topics, people: str, golden: Path, tmp_path: Path
) -> None:
    rules = rules_from_options(["$.phone=mask:0:1", "$.email=drop", "keys=drop"])
    archive(topics.namesrv, people, tmp_path / "raw", tmp_path / "checkpoint", spark=spark)
    report = mask(MessageSource(archive=tmp_path / "raw"), people, rules, tmp_path / "copy", spark=spark)
    assert report.total == sum(1 for row in rows_of(spark, tmp_path / "copy")) == report.values["$.phone"]
    assert {row["keys"] for row in rows_of(spark, tmp_path / "copy")} == {None}
    nothing_is_left_of_secrets(tmp_path / "copy")

    unpack(golden / "stores" / "clean" / "store.tar.gz", tmp_path)
    source = MessageSource(store=tmp_path / "store", broker_name="gold")
    whole = mask(source, "GoldDelay", rules_from_options(["body=drop"]), tmp_path / "gold", spark=spark)
    rows = rows_of(spark, tmp_path / "gold")
    assert whole.messages == len(rows) > 0
    assert {bytes(row["body"]) for row in rows} == {b"null"}
    assert (whole.values["body"], whole.complete) == (len(rows), True)


def test_wrong_use_and_bodies_that_must_not_pass(spark: Any, topics: Topics, people: str, tmp_path: Path) -> None:
    source = MessageSource(topics.namesrv)
    with pytest.raises(SparkSourceError, match="cannot be masked: its body is not JSON"):
        mask(source, people, rules_from_options(["$.a=drop"], not_json="fail"), tmp_path / "copy", spark=spark)
    with pytest.raises(OptionError, match="file for the keys"):
        mask(source, people, ENCRYPTED, tmp_path / "copy", hash_secret_file=__file__, spark=spark)
    with pytest.raises(OptionError, match="COMETMQ_MASK_HASH_SECRET"):
        mask(source, people, rules_from_options(["keys=hash"]), tmp_path / "copy", spark=spark)
    archive(topics.namesrv, people, tmp_path / "raw", tmp_path / "checkpoint", spark=spark)
    with pytest.raises(ArchiveError, match="not masked"):
        mask(source, people, rules_from_options(["keys=drop"]), tmp_path / "raw", spark=spark)


def bodies_in(topics: Topics, topic: str, queues: int) -> list[int]:
    """The numbers of the messages in a topic, none of which has a secret."""
    found = []
    for queue in stored(topics, topic, queues):
        for record in queue:
            assert SECRET not in record.body.decode() + record.properties_text
            found.append(json.loads(record.body)["n"])
    return sorted(found)


def test_the_commands_copy_forget_and_reveal(
    spark: Any, topics: Topics, people: str, master_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    rules = tmp_path / "rules.toml"
    rules.write_text(
        """
        subject = "$.userId"
        not_json = "drop"
        rule = [
            {field = "$.phone", action = "encrypt"},
            {field = "$.email", action = "mask", keep_first = 1},
            {field = "$.absent", action = "drop"},
            {field = "keys", action = "drop"},
        ]
        """
    )
    keys = ["--keys", str(tmp_path / "keys"), "--master-key-file", str(master_key)]
    copy = topics.create(2)
    wanted = ["mask", "copy", "-n", topics.namesrv, "--topic", people, "--rules", str(rules), *keys]
    wanted += ["--to", copy, "--work", str(tmp_path / "work")]

    def run(*arguments: str, **more: Any) -> Result:
        return CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False, **more)

    dry = run(*wanted, "--dry-run", "--samples", "1")
    assert dry.return_value == 0
    assert SECRET in dry.stdout  # the sample shows what is not masked yet …
    assert "enc:1:" in dry.stdout
    assert "no message has $.absent" in dry.stdout
    assert not (tmp_path / "work").exists()
    assert stored(topics, copy, 2) == [[], []]

    page = tmp_path / "mask.html"
    done = run(*wanted, "--report", str(page), "-o", "json")
    found = json.loads(done.stdout)
    assert (found["exit_code"], found["replayed"]["messages"]) == (0, found["messages"])
    assert SECRET not in done.stdout + done.stderr + page.read_text()  # … and nothing else does
    assert master_key.read_text() not in done.stdout + page.read_text()
    documents = [json.loads(record.body) for queue in stored(topics, copy, 2) for record in queue]
    assert len(documents) == found["messages"]
    assert documents.count(None) == 4

    dry = run("mask", "forget", *keys, "--dry-run", "user-0", "nobody")
    assert (dry.return_value, dry.stdout) == (3, "1 key would be dropped, 1 subject had none\n")
    forgotten = run("mask", "forget", *keys, input="user-0\nnobody\n")
    assert (forgotten.return_value, forgotten.stdout) == (3, "1 key dropped, 1 subject had none\n")
    shown = run("mask", "reveal", "--archive", str(tmp_path / "work/archive"), *keys)
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.return_value == 3
    erased = sum(1 for document in documents if document is not None and document["userId"] == "user-0")
    assert f"{erased} erased" in shown.stderr
    revealed = [json.loads(line["body"]) for line in lines if line["body"] != "null"]
    assert all(one["phone"].startswith(SECRET) == (one["userId"] != "user-0") for one in revealed)

    reveal = ["mask", "reveal", "--archive", str(tmp_path / "work/archive"), *keys, "--topic"]
    for wrong in (wanted[:-2], [*wanted, "--rule", "keys=drop"], [*wanted, "--topic", copy], [*reveal, "typo"]):
        with pytest.raises(click.UsageError):
            run(*wrong)


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before-commit", "before-sent"])
def test_a_killed_copy_goes_on_and_sends_each_message_once(
    spark: Any, topics: Topics, master_key: Path, tmp_path: Path, point: str
) -> None:
    topic, copy = topics.create(2), topics.create(2)
    for queue_id in range(2):
        topics.send(topic, queue_id, [body(number) for number in range(queue_id, 600, 2)])
    script = ["tests.spark.jobs.mask.masking", topics.namesrv, topic, str(tmp_path / "work"), copy]
    run_until_killed(spark, *script, str(master_key), point)
    report = mask_to_topic(
        MessageSource(topics.namesrv),
        topic,
        ENCRYPTED,
        tmp_path / "work",
        topics.namesrv,
        copy,
        keys=tmp_path / "work" / "keys",
        master_key_file=master_key,
        hash_secret_file=master_key,
        spark=spark,
    )
    assert (report.total, report.complete) == (600, True)
    assert bodies_in(topics, copy, 2) == list(range(600))
    nothing_is_left_of_secrets(tmp_path / "work")


def test_the_example_runs(
    spark: Any, topics: Topics, tmp_path: Path, run_example: RunExample, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("cryptography") is None:
        pytest.skip("cryptography is not installed")
    topic = topics.create(1)
    topics.send(topic, 0, [body(number) for number in range(10)])
    key = base64.b64encode(os.urandom(32)).decode()
    monkeypatch.setenv(MASTER_VARIABLE, key)
    monkeypatch.setitem(spark.sparkContext.environment, MASTER_VARIABLE, key)  # of workers: the JVM runs already
    said = run_example("mask.py", topics.namesrv, topic, tmp_path / "copy")
    assert "10 values opened, 0 erased" in said
    assert "7 values opened, 3 erased" in said
