"""Paths with a scheme, in everything of Spark's room: those of this machine are accepted, all others rejected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.errors import CometMQError
from cometmq.options import Option
from cometmq.options.declared import declared
from cometmq.spark import (
    ArchiveLog,
    KeyStore,
    LagListener,
    archive,
    find_by_key,
    kept_starting_offsets,
    master_key_place,
    read_archive,
    rules_from_toml,
)
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs import options as jobs
from cometmq.spark.jobs.job import DIRECTORY, FILE, KEY_STORE, NEW_PLACE, OLD_DIRECTORY, OLD_PLACE
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.source.options import parse_options
from cometmq.spark.store.options import parse_store_options

URL = "s3://bucket/lake"
SAID = "the scheme s3 is not supported .*file:///data/lake"
PLACES = {DIRECTORY, OLD_DIRECTORY, FILE, KEY_STORE}
SAID_OF_PLACES = "unknown scheme ftp .*s3://bucket/path"
CLASSES = [
    *(of for of in vars(jobs).values() if dataclasses.is_dataclass(of) and isinstance(of, type) and of is not Option),
    MessageSource,
]
FIELDS = [(of, name, said) for of in CLASSES for name, said in declared(of).items() if isinstance(said, Option)]


@pytest.mark.parametrize(("of", "name", "said"), FIELDS, ids=[f"{of.__name__}-{name}" for of, name, _ in FIELDS])
def test_every_path_of_every_job_is_one_of_this_machine(of: type[Any], name: str, said: Option) -> None:
    """Also in a function that is called without a command."""
    types = {field.name: str(field.type) for field in dataclasses.fields(of)}
    assert ("Path" in types[name]) == (said.form in PLACES | {NEW_PLACE, OLD_PLACE})
    if said.form in (NEW_PLACE, OLD_PLACE):
        needed = {field.name: "x" for field in dataclasses.fields(of) if field.default is dataclasses.MISSING}
        with pytest.raises(OptionError, match=f"option {name} is invalid: .*{SAID_OF_PLACES}"):
            of(**needed | {name: "ftp://host/store"})
        for given, read in ((URL, URL), (Path("/data/x"), "/data/x"), ("file:///data/my%20lake", "/data/my lake")):
            assert getattr(of(**needed | {name: given}), name) == read
    if said.form not in PLACES:
        return
    needed = {field.name: "x" for field in dataclasses.fields(of) if field.default is dataclasses.MISSING}
    reason = "a key store is an SQLite database, which cannot be at s3://" if said.form is KEY_STORE else f"s3:.*{SAID}"
    for url in (URL, Path(URL)):
        with pytest.raises(OptionError, match=f"option {name} is invalid: {reason}"):
            of(**needed | {name: url})
    assert getattr(of(**needed | {name: "file:///data/my%20lake"}), name) == Path("/data/my lake")
    assert getattr(of(**needed | {name: "lake"}), name) == "lake"


@pytest.mark.parametrize(
    "call",
    [
        lambda: KeyStore(URL, master_key_place(None)),
        lambda: master_key_place(URL),
        lambda: kept_starting_offsets(URL, {}),
        lambda: LagListener(URL),
        lambda: rules_from_toml(URL),
        lambda: parse_options({"namesrvAddr": "a:1", "topic": "t", "credentialsFile": URL}),
        lambda: parse_options({"namesrvAddr": "a:1", "topic": "t", "accessKey": "k", "secretKeyFile": URL}),
        lambda: parse_options({"namesrvAddr": "a:1", "topic": "t", "useTLS": "true", "tlsTrustCertPath": URL}),
    ],
)
def test_every_function_and_option_takes_paths_of_this_machine(
    call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CometMQError, match=SAID):
        call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: ArchiveLog("ftp://host/lake"),
        lambda: find_by_key("archive", "ftp://host/index", "topic", "key"),
        lambda: parse_store_options({"path": "store", "badRecordsPath": "ftp://host/bad"}),
        lambda: parse_options({"namesrvAddr": "a:1", "topic": "t", "badBodies": "null", "badRecordsPath": "ftp://b/c"}),
    ],
)
def test_a_place_at_an_unknown_url_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(CometMQError, match="unknown scheme ftp"):
        call()


def test_an_archive_elsewhere_is_refused_and_one_at_a_url_of_a_file_is_made(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = topics.fill(5, queues=1)
    for to, checkpoint, reason in (("ftp://a/b", "checkpoint", "ftp"), ("lake", "ftp://n/c", "ftp")):
        with pytest.raises(OptionError, match=reason):
            archive(topics.namesrv, topic, to, checkpoint, spark=spark)
    assert list(tmp_path.iterdir()) == []
    done = archive(topics.namesrv, topic, f"file://{tmp_path}/lake", f"file:{tmp_path}/checkpoint", spark=spark)
    assert (done.rows, read_archive(spark, f"file:{tmp_path}/lake").count()) == (5, 5)
    assert {entry.name for entry in tmp_path.iterdir()} == {"lake", "checkpoint"}


def test_a_store_is_read_at_a_url_of_a_file(spark: Any, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 9, body=lambda _: b"x")
    assert spark.read.format("rocketmq_store").load(f"file://{tmp_path}/store").count() == 9
    with pytest.raises(Exception, match="unknown scheme ftp"):
        spark.read.format("rocketmq_store").load("ftp://host/store").count()
