"""Backups of a running store: what they share, what they refuse, and that a restored store has everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine

from cometmq.backup.create import Options, create_backup
from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.log_end import end_of_records
from cometmq.backup.manifest import BackupError
from cometmq.store.version import StoreMark
from cometmq.testing import ProcessCluster

KEYS = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "2000"}
OTHER_SIZES = {"mappedFileSizeCommitLog": str(1 << 22), "mappedFileSizeConsumeQueue": "20000"}
"""Those of a broker that gets a restored store, whose files keep theirs."""
EMPTY: dict[str, Any] = {"size": 0, "data": 0, "sha256": "0" * 64, "mtime_ns": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(data=tmp_path_factory.mktemp("cluster"), broker_keys=KEYS) as running:
        yield running


@pytest.fixture(scope="module")
def cometmq(cluster: ProcessCluster) -> CommandLine:
    command = CommandLine(cluster.namesrv_address)
    assert command("topic", "create", "kept", "--queues", "2").code == 0
    assert command("produce", "kept", "--count", "3000", "--size", "2000", "--batch", "50").code == 0
    return command


def bodies(cometmq: CommandLine) -> int:
    return sum(row["messages"] for row in cometmq("topic", "stats", "kept", "-o", "json").json())


def test_a_backup_is_made_verified_and_restored_while_the_broker_runs(
    cometmq: CommandLine, cluster: ProcessCluster, tmp_path: Path
) -> None:
    there = bodies(cometmq)
    store, backup, restored = cluster.store_root(0), tmp_path / "one", tmp_path / "restored"
    made: dict[str, Any] = cometmq("backup", "create", str(store), str(backup), "-o", "json").json()
    assert made["shared_bytes"] > 4 << 20
    assert made["copied_bytes"] < made["bytes"] - (4 << 20)
    assert not (backup / "store" / "lock").exists()
    assert cometmq("backup", "verify", str(backup), "-o", "json").json()["log_end"] == made["log_end"]

    cometmq("produce", "kept", "--count", "1000", "--size", "2000", "--batch", "50")
    second = cometmq("backup", "create", str(store), str(tmp_path / "two"), "-o", "json").json()
    assert second["previous"] == str(backup)
    assert second["reused_bytes"] >= made["shared_bytes"] - (2 << 20)
    alone = cometmq("backup", "create", str(store), str(tmp_path / "three"), "--full", "--copy", "-o", "json").json()
    assert (alone["shared_bytes"], alone["reused_bytes"]) == (0, 0)
    assert alone["bytes"] == alone["copied_bytes"]

    shutil.rmtree(backup)  # the second one needs it no more
    two = str(tmp_path / "two")
    assert cometmq("backup", "verify", two).code == 0
    assert cometmq("backup", "restore", two, str(restored)).code == 0
    with ProcessCluster(data=tmp_path / "again", broker_keys=OTHER_SIZES) as target:
        root = target.store_root(0)
        target.stop()
        shutil.rmtree(root)
        restored.rename(root)
        target.start()
        found = CommandLine(target.namesrv_address)
        assert bodies(found) == there + 1000
        assert found("produce", "kept", "--body", "goes on").code == 0
        assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {1 << 20}
        assert {path.stat().st_size for path in (root / "consumequeue" / "kept").glob("*/*")} == {2000}
    assert cometmq("backup", "verify", two).code == 0, "the restored broker did not touch it"


@pytest.fixture
def backup(cometmq: CommandLine, cluster: ProcessCluster, tmp_path: Path) -> Path:
    assert cometmq("backup", "create", str(cluster.store_root(0)), str(tmp_path / "b"), "--copy").code == 0
    return tmp_path / "b"


def test_a_damaged_backup_is_found_and_not_restored(cometmq: CommandLine, backup: Path, tmp_path: Path) -> None:
    log = sorted((backup / "store" / "commitlog").iterdir())
    first, last = bytearray(log[0].read_bytes()), log[-1].read_bytes()
    first[500_000] ^= 1
    log[0].write_bytes(first)
    log[-1].write_bytes(last[:-1] + b"x")
    (backup / "store" / "config" / "topics.json").unlink()
    (backup / "store" / "more").write_text("x")
    refused = cometmq("backup", "verify", str(backup))
    assert refused.code == 1
    for words in (
        f"commitlog/{log[0].name} has changed",
        f"commitlog/{log[-1].name} has changed",
        "config/topics.json is missing",
        "more does not belong to it",
    ):
        assert words in refused.err
    assert cometmq("backup", "restore", str(backup), str(tmp_path / "into")).code == 1
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "reads version 1 (restore it with the CometMQ that created it, or a newer one)"),
        ({"format": "other"}, "is not a manifest of a CometMQ backup"),
        (
            {"files": {"../../etc/passwd": EMPTY}},
            "it contains the invalid path",
        ),
        ({"files": {"a": {**EMPTY, "data": 1}}}, "invalid numbers for a"),
        ({"log_end": "x"}, "is damaged: Expected `int`"),
        (None, "is not a complete backup: it has no manifest.json"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(
    cometmq: CommandLine, tmp_path: Path, change: dict[str, Any] | None, words: str
) -> None:
    tmp_path.joinpath("b").mkdir()
    manifest = {"format": "cometmq-backup", "version": 1, "cometmq": "0", "created_ms": 0, "source": "/s"}
    if change is not None:
        text = json.dumps({**manifest, "log_begin": 0, "log_end": 0, "files": {}, **change})
        (tmp_path / "b" / "manifest.json").write_text(text)
    refused = cometmq("backup", "restore", str(tmp_path / "b"), str(tmp_path / "into"))
    assert refused.code == 1
    assert words in refused.err
    assert not (tmp_path / "into").exists()


def content_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_is_there_is_not_written_over(
    cometmq: CommandLine, backup: Path, cluster: ProcessCluster, tmp_path: Path
) -> None:
    store, other = cluster.store_root(0), tmp_path / "other"
    shutil.copytree(backup / "store", other)
    next((other / "commitlog").iterdir()).write_bytes(b"another log")
    before = [content_of(place) for place in (backup, other)]
    again = cometmq("backup", "create", str(store), str(backup))
    assert (again.code, "is not empty" in again.err) == (1, True)
    over = cometmq("backup", "restore", str(backup), str(other))
    advice = "is not empty; nothing was restored (move the old store to another directory"
    assert (over.code, advice in over.err) == (1, True)
    assert [content_of(place) for place in (backup, other)] == before
    assert "TARGET is inside STORE" in cometmq("backup", "create", str(store), str(store / "b")).err
    nothing = cometmq("backup", "create", str(tmp_path / "nothing"), str(tmp_path / "x"))
    assert "is not a store" in nothing.err
    assert not (tmp_path / "x").exists()


def test_an_interrupted_restore_begins_anew(cometmq: CommandLine, backup: Path, tmp_path: Path) -> None:
    (tmp_path / ".into.restoring").mkdir()
    (tmp_path / ".into.restoring" / "half").touch()
    assert cometmq("backup", "restore", str(backup), str(tmp_path / "into")).code == 0
    assert not (tmp_path / "into" / "half").exists()
    assert not (tmp_path / ".into.restoring").exists()


def test_a_torn_record_at_the_end_is_left_out(backup: Path, tmp_path: Path) -> None:
    store = tmp_path / "torn"
    shutil.copytree(backup / "store", store)
    last = sorted((store / "commitlog").iterdir())[-1]
    end = end_of_records(last, int(last.name))
    with last.open("r+b") as file:
        file.seek(end - 10)
        file.write(bytes(10))
    made = create_backup(Options(store, DirectoryBackup(tmp_path / "again")))
    assert 0 < made.manifest.log_end - int(last.name) < end
    file_of = made.manifest.files[f"commitlog/{last.name}"]
    assert (file_of.size, file_of.data) == (1 << 20, made.manifest.log_end - int(last.name))


def test_a_log_that_loses_a_file_in_the_middle_is_no_backup(backup: Path, tmp_path: Path) -> None:
    store = tmp_path / "gap"
    shutil.copytree(backup / "store", store)
    middle = sorted((store / "commitlog").iterdir())[2]
    middle.unlink()
    with pytest.raises(BackupError, match="a log file is missing at offset"):
        create_backup(Options(store, DirectoryBackup(tmp_path / "again")))


def test_a_store_of_a_newer_version_is_not_restored(
    cometmq: CommandLine, cluster: ProcessCluster, tmp_path: Path
) -> None:
    store = tmp_path / "newer"
    shutil.copytree(cluster.store_root(0), store)
    fields = {"version": 7, "readable_by": 2, "cometmq": "9.1", "check": StoreMark(7, 2, "9.1").check}
    (store / "comet" / "store.json").write_text(json.dumps(fields))
    create_backup(Options(store, DirectoryBackup(tmp_path / "b")))
    refused = cometmq("backup", "restore", str(tmp_path / "b"), str(tmp_path / "into"))
    assert refused.code == 1
    assert "was written by CometMQ 9.1 (store version 7)" in refused.err
    assert not (tmp_path / "into").exists()
