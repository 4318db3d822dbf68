"""``cometmq doctor --store`` tells of a store that does not open, what is wrong and what to do, and changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.unpack import unpack
from tests.store.conftest import SEGMENT_BYTES, StoreBench, fill

from cometmq.client import Message
from cometmq.client.sync import SyncProducer
from cometmq.store.version import StoreMark
from cometmq.testing import ProcessCluster

Rows = list[dict[str, Any]]


def look(offline: CommandLine, store: Path, *options: str) -> Rows:
    """The findings; each that is not ok has a next step, and the store is as before."""
    before = contents(store)
    done = offline("doctor", "--store", str(store), *options, "-o", "json")
    rows: Rows = done.json()
    assert contents(store) == before
    assert all(row["todo"] for row in rows if row["state"] != "ok")
    assert done.code == int(any(row["state"] == "problem" for row in rows)), done.err
    return rows


def contents(store: Path) -> dict[Path, tuple[int, int]]:
    stats = {path: path.stat() for path in store.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def wrong(rows: Rows) -> list[tuple[str, str, str]]:
    return [(row["check"], row["state"], row["found"]) for row in rows if row["state"] != "ok"]


def found(rows: Rows, check: str) -> str:
    return next(str(row["found"]) for row in rows if row["check"] == check)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with several log files and tables, cleanly stopped."""
    bench = StoreBench(tmp_path / "store")
    store = bench.open()
    fill(store, 1500)
    store.close_now()
    config = bench.root / "config"
    config.mkdir()
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"TopicTest": {}}}))
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
    return bench.root


@pytest.mark.parametrize("name", ["clean", "v6"])
def test_a_sound_store_of_apache_has_no_advice(offline: CommandLine, golden: Path, tmp_path: Path, name: str) -> None:
    unpack(golden / "stores" / name / "store.tar.gz", tmp_path)
    rows = look(offline, tmp_path / "store", "--all")
    assert wrong(rows) == []
    assert found(rows, "last stop") == "clean"
    assert found(rows, "version").startswith("not marked by CometMQ")
    assert "all files read" in found(rows, "messages")


def test_a_torn_store_of_apache_is_told_of(offline: CommandLine, golden: Path, tmp_path: Path) -> None:
    unpack(golden / "stores" / "torn" / "store.tar.gz", tmp_path)
    rows = wrong(look(offline, tmp_path / "store"))
    assert [(check, state) for check, state, _ in rows] == [("last stop", "advice"), ("end of the log", "advice")]


def test_a_store_of_a_broker_is_looked_at_while_it_runs_and_after_its_stop(
    offline: CommandLine, tmp_path: Path
) -> None:
    with ProcessCluster(data=tmp_path) as cluster:
        with SyncProducer("shop", cluster.namesrv_address) as producer:
            for number in range(100):
                producer.send(Message("orders", b"%d" % number))
        (root,) = (path.parent for path in tmp_path.rglob("commitlog"))
        rows = offline("doctor", "--store", str(root), "-o", "json").json()
        ((check, state, held),) = wrong(rows)
        assert (check, state) == ("lock", "advice")
        assert "held by " in held
        assert "messages" not in {row["check"] for row in rows}
    rows = look(offline, root, "--all")
    assert wrong(rows) == []
    assert "config/topics.json" in found(rows, "tables")


def put(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def log_file(root: Path, number: int) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def with_data(root: Path) -> Path:
    """The last log file that has messages."""
    return [path for path in sorted((root / "commitlog").iterdir()) if any(path.read_bytes())][-1]


def cut(path: Path) -> None:
    os.truncate(path, 5000)


def newer(root: Path) -> None:
    path = root / "comet" / "store.json"
    mark = StoreMark(version=99, readable_by=99, cometmq="99.0")
    path.write_text(
        json.dumps({"version": 99, "readable_by": 99, "cometmq": "99.0", "sizes": None, "check": mark.check})
    )


def in_the_future(root: Path) -> None:
    ahead = int(time.time() * 1000) + 3_600_000
    put(root / "checkpoint", 0, ahead.to_bytes(8, "big"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "a log file cut short": (lambda root: cut(with_data(root)), "log files", "problem", "has 5,000 bytes, not 65,536"),
    "its end is lost": (lambda root: cut(with_data(root)), "queues", "problem", "after the log's end at"),
    "garbage in the log": (
        lambda root: put(with_data(root), 3000, os.urandom(400)),
        "messages",
        "problem",
        "1 damaged part of ",
    ),
    "a missing log file": (lambda root: log_file(root, 2).unlink(), "log files", "problem", "1 file missing between"),
    "no log": (lambda root: shutil.rmtree(root / "commitlog"), "log", "problem", "is missing or empty"),
    "a foreign log file": (
        lambda root: (root / "commitlog" / f"{SEGMENT_BYTES + 7:020}").touch(),
        "log files",
        "problem",
        "not a multiple of the file size",
    ),
    "a missing queue": (
        lambda root: shutil.rmtree(root / "consumequeue" / "TopicTest" / "1"),
        "queues",
        "advice",
        "1 queue missing, although the log has messages: TopicTest/1",
    ),
    "a missing file of a queue": (
        lambda root: (root / "consumequeue" / "TopicTest" / "1" / f"{2000:020}").unlink(),
        "queues",
        "problem",
        "without a file between others: TopicTest/1",
    ),
    "no index": (lambda root: shutil.rmtree(root / "index"), "index", "advice", "no files"),
    "an index file cut short": (
        lambda root: cut(sorted((root / "index").iterdir())[0]),
        "index",
        "advice",
        "1 file with a wrong name or length",
    ),
    "a damaged checkpoint": (lambda root: cut_to_nothing(root / "checkpoint"), "checkpoint", "advice", "missing or"),
    "a clock that was ahead": (in_the_future, "store times of ", "advice", "ahead of the broker's clock"),
    "a damaged table": (
        lambda root: (root / "config" / "topics.json").write_text('{"topicConfigTable": {'),
        "tables",
        "problem",
        "config/topics.json is damaged, and has no usable .bak",
    ),
    "a newer version": (newer, "version", "problem", "was written by CometMQ 99.0"),
    "a crash": (lambda root: (root / "abort").touch(), "last stop", "advice", "not clean"),
    "a file that cannot be written": (lambda root: (root / "checkpoint").chmod(0o400), "owner", "problem", "writable"),
}


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found(root: Path, offline: CommandLine, name: str) -> None:
    assert wrong(look(offline, root, "--all")) == []
    damage, check, state, text = DAMAGES[name]
    damage(root)
    rows = look(offline, root, "--all")
    assert any(of.startswith(check) and how == state and text in what for of, how, what in wrong(rows)), wrong(rows)


def test_a_damaged_table_with_a_good_backup_only_lacks_its_last_change(root: Path, offline: CommandLine) -> None:
    table = root / "config" / "topics.json"
    shutil.copy(table, table.with_name("topics.json.bak"))
    table.write_bytes(b"\0" * 100)
    ((check, state, text),) = wrong(look(offline, root))
    assert (check, state) == ("tables", "advice")
    assert "config/topics.json is damaged" in text


def test_the_holder_of_the_lock_is_named_and_keeps_it(root: Path, offline: CommandLine) -> None:
    with (root / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        ((check, state, text),) = wrong(look(offline, root))
        assert (check, state) == ("lock", "advice")
        assert f"(process {os.getpid()})" in text
    assert wrong(look(offline, root)) == []


def test_the_last_two_files_are_read_and_all_with_all(root: Path, offline: CommandLine) -> None:
    put(log_file(root, 0), 3000, os.urandom(400))
    rows = look(offline, root)
    assert wrong(rows) == []
    assert "the last 2 files with messages read" in found(rows, "messages")
    assert [check for check, _, _ in wrong(look(offline, root, "--all"))] == ["messages"]


def test_a_log_on_another_disk_is_given_by_its_own_option(root: Path, offline: CommandLine, tmp_path: Path) -> None:
    shutil.move(root / "commitlog", tmp_path / "log")
    assert [check for check, _, _ in wrong(look(offline, root))] == ["log"]
    assert wrong(look(offline, root, "--commit-log", str(tmp_path / "log"))) == []


def test_a_wrong_directory_is_told_of_with_the_right_one(root: Path, offline: CommandLine, tmp_path: Path) -> None:
    for wrong_one in (root.parent, root / "commitlog"):
        (row,) = look(offline, wrong_one)
        assert (row["check"], row["state"]) == ("store", "problem")
        assert row["todo"] == f"cometmq doctor --store {root}"
    (tmp_path / "empty").mkdir()
    for absent in (tmp_path / "empty", tmp_path / "nowhere", Path("/etc")):
        (row,) = offline("doctor", "--store", str(absent), "-o", "json").json()
        assert (row["check"], row["state"]) == ("store", "problem")
        assert row["todo"]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a mapped file needs no descriptor")
def test_a_log_of_more_files_than_descriptors_is_told_of_as_at_a_start(root: Path) -> None:
    command = f"ulimit -n 9; exec {sys.executable} -m cometmq doctor --store {root} --all -o json"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    (row,) = [row for row in json.loads(done.stdout) if row["check"] == "files"]
    assert "too many open files" in row["found"]
    assert "ulimit -n" in row["todo"]


def test_a_full_disk_is_told_of_before_a_broker_fails_on_it(root: Path, offline: CommandLine, small_disk: Path) -> None:
    for part in ("config", "comet", "checkpoint"):
        path = root / part
        (shutil.copytree if path.is_dir() else shutil.copy)(path, small_disk / part)
    (small_disk / "commitlog").mkdir()
    (row,) = [row for row in look(offline, small_disk) if row["check"].startswith("disk of")]
    assert row["state"] == "problem"
    assert "the next log file cannot be allocated" in row["todo"]


@pytest.mark.parametrize("options", [("--all",), ("--commit-log", "/"), ("--store", "/", "--cluster")])
def test_options_that_do_not_fit_are_refused(offline: CommandLine, options: tuple[str, ...]) -> None:
    refused = offline("doctor", *options)
    assert refused.code == 2
    assert "--store" in refused.err
