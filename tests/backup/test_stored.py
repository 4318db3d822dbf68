"""Backups in a storage: what they share, what they refuse, and that a restored store has everything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.storage.servers.faults import faulty
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, S3Server, seaweed

from cometmq.backup.create import Options, create_backup
from cometmq.backup.manifest import BackupError
from cometmq.backup.opening import backups_in, open_backup
from cometmq.backup.place import newest
from cometmq.backup.stored import StoredBackup
from cometmq.backup.verify import restore_backup, verify_backup
from cometmq.paths import PathError
from cometmq.storage import Storage, open_storage
from cometmq.testing import ProcessCluster

KEYS = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "2000"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several log files, whose broker has stopped."""
    with ProcessCluster(data=tmp_path_factory.mktemp("cluster"), broker_keys=KEYS) as cluster:
        send = CommandLine(cluster.namesrv_address)
        assert send("topic", "create", "kept", "--queues", "2").code == 0
        assert send("produce", "kept", "--count", "2500", "--size", "2000", "--batch", "50").code == 0
        return cluster.store_root(0)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A storage of backups."""
    return open_storage(tmp_path / "backups")


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def age(storage: Storage, hours: float) -> None:
    """Set the times of all objects back."""
    for path in Path(storage.url).rglob("*"):
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))


def test_a_restored_backup_has_every_file_of_the_store(store: Path, storage: Storage, tmp_path: Path) -> None:
    backup = StoredBackup(storage, "one")
    made = create_backup(Options(store, backup))
    assert verify_backup(backup) == made.manifest
    restore_backup(backup, tmp_path / "restored")
    original = files_of(store)
    original.pop("lock", None)
    restored = files_of(tmp_path / "restored")
    assert restored.keys() == original.keys()
    for name, content in restored.items():
        assert content == original[name] or (name.startswith("commitlog/") and original[name].startswith(
            content.rstrip(b"\0")))  # fmt: skip


def test_the_next_backup_uploads_what_is_new(store: Path, storage: Storage) -> None:
    create_backup(Options(store, StoredBackup(storage, "one")))
    before = {found.key for found in storage.list_objects("_files")}
    second = StoredBackup(storage, "two")
    previous = newest(second.beside(), str(store.absolute()))
    assert isinstance(previous, StoredBackup)
    made = create_backup(Options(store, second, previous=previous))
    assert made.reused_bytes > 3 << 20
    assert {found.key for found in storage.list_objects("_files")} == before
    # Without a previous backup the content of a sealed file tells that it is there.
    alone = create_backup(Options(store, StoredBackup(storage, "three")))
    assert alone.reused_bytes == made.reused_bytes
    assert {found.key for found in storage.list_objects("_files")} == before


def test_a_file_without_content_is_no_object(store: Path, storage: Storage) -> None:
    made = create_backup(Options(store, StoredBackup(storage, "one")))
    assert all(found.size for found in storage.list_objects())
    stored = sum(found.size for found in storage.list_objects())
    assert stored < sum(file.size for file in made.manifest.files.values()), "zeros at the end are left out"


def test_damage_is_found_and_named(store: Path, storage: Storage, tmp_path: Path) -> None:
    backup = StoredBackup(storage, "one")
    manifest = create_backup(Options(store, backup)).manifest
    sealed = [name for name, file in manifest.files.items() if file.sealed and name.startswith("commitlog/")]
    key = f"_files/{manifest.files[sealed[0]].sha256}"
    content = bytearray(storage.read(key))
    content[1000] ^= 1
    storage.put(key, bytes(content))
    storage.delete([f"_files/{manifest.files[sealed[1]].sha256}", "one/store/config/topics.json"])
    storage.put("one/store/more", b"x")
    with pytest.raises(BackupError) as raised:
        verify_backup(backup)
    for words in (
        f"{sealed[0]} has changed",
        f"{sealed[1]} is missing",
        "config/topics.json is missing",
        "more does not belong to it",
    ):
        assert words in str(raised.value)
    with pytest.raises(BackupError, match="is damaged"):
        restore_backup(backup, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_what_is_there_is_not_written_over(store: Path, storage: Storage) -> None:
    create_backup(Options(store, StoredBackup(storage, "one")))
    with pytest.raises(BackupError, match="one is not empty"):
        create_backup(Options(store, StoredBackup(storage, "one")))


def test_a_manifest_that_another_process_wrote_first_stays(store: Path, storage: Storage) -> None:
    backup = StoredBackup(storage, "one")

    def write_first(part: str) -> None:
        if part == "commitlog":
            storage.put("one/manifest.json", b"{}")

    with pytest.raises(BackupError, match="one is not empty"):
        create_backup(Options(store, backup), report=write_first)
    assert storage.read("one/manifest.json") == b"{}"


def test_an_interrupted_backup_is_none(store: Path, storage: Storage, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(part: str) -> None:
        if part == "commitlog":
            raise Killed

    with pytest.raises(Killed):
        create_backup(Options(store, StoredBackup(storage, "half")), report=kill)
    assert backups_in(storage.url) == []
    with pytest.raises(BackupError, match="half is not a complete backup: it has no manifest"):
        restore_backup(StoredBackup(storage, "half"), tmp_path / "into")


def test_deleting_keeps_what_other_backups_need(store: Path, storage: Storage) -> None:
    create_backup(Options(store, StoredBackup(storage, "one")))
    create_backup(Options(store, StoredBackup(storage, "two")))
    age(storage, 48)
    StoredBackup(storage, "one").delete()
    assert storage.list_directories() == ["_deleted", "_files", "two"]
    verify_backup(StoredBackup(storage, "two"))


def test_files_of_a_deleted_backup_go_a_day_later(store: Path, storage: Storage, tmp_path: Path) -> None:
    create_backup(Options(store, StoredBackup(storage, "one")))
    age(storage, 48)
    StoredBackup(storage, "one").delete()
    files = {found.key for found in storage.list_objects("_files")}
    assert files, "a backup that is being created may have counted on them"
    made = create_backup(Options(store, StoredBackup(storage, "two")))
    assert made.reused_bytes > 3 << 20
    age(storage, 48)
    StoredBackup(storage, "two").delete()
    age(storage, 48)
    other = tmp_path / "other"
    shutil.copytree(store, other)
    (other / "config" / "other.json").write_text("{}")
    create_backup(Options(other, StoredBackup(storage, "three")))
    StoredBackup(storage, "three").delete()
    assert {found.key for found in storage.list_objects("_files")} == files, "three was deleted just now"
    age(storage, 48)
    storage.put("half/store/x", b"x")
    create_backup(Options(_without_sealed_files(store, tmp_path / "small"), StoredBackup(storage, "four")))
    StoredBackup(storage, "four").delete()
    assert list(storage.list_objects("_files")) == []
    assert storage.list_directories() == ["_deleted", "half"], "an interrupted backup stays for a day"
    age(storage, 48)
    create_backup(Options(tmp_path / "small", StoredBackup(storage, "five")))
    StoredBackup(storage, "five").delete()
    assert storage.list_directories() == ["_deleted"]


def _without_sealed_files(store: Path, target: Path) -> Path:
    shutil.copytree(store, target)
    shutil.rmtree(target / "consumequeue")
    for path in sorted((target / "commitlog").iterdir())[:-1]:
        path.unlink()
    return target


def test_a_whole_bucket_is_no_backup() -> None:
    with pytest.raises(PathError, match=r"s3://bucket is a whole bucket \(name the backup: URL/backups"):
        open_backup("s3://bucket")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server."""
    with seaweed(tmp_path_factory.mktemp("seaweed")) as found:
        yield found


def test_the_command_backs_up_to_s3(store: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    cometmq = CommandLine("127.0.0.1:1")
    option = ("--storage", f"endpoint={s3.endpoint}")
    first, second = "s3://lake/backups/one", "s3://lake/backups/two"
    made: dict[str, Any] = cometmq("backup", "create", str(store), first, *option, "-o", "json").json()
    assert made["copied_bytes"] > 4 << 20
    again = cometmq("backup", "create", str(store), second, *option, "-o", "json").json()
    assert (again["previous"], again["reused_bytes"] > 3 << 20) == (first, True)
    listed = cometmq("backup", "list", "s3://lake/backups", *option, "-o", "json").json()
    assert [row["backup"] for row in listed] == [first, second]
    assert cometmq("backup", "verify", second, *option).code == 0
    assert cometmq("backup", "delete", first, *option, "--dry-run").code == 0
    assert cometmq("backup", "delete", first, *option).code == 0
    assert cometmq("backup", "restore", second, str(tmp_path / "restored"), *option).code == 0
    assert (tmp_path / "restored" / "commitlog").is_dir()
    secret = cometmq("backup", "verify", second, "--storage", "secretAccessKey=TOPSECRET")
    assert secret.code == 2
    assert "is a secret, and other users" in secret.err
    unknown = cometmq("backup", "verify", "ftp://host/x")
    assert (unknown.code, "unknown scheme ftp" in unknown.err) == (2, True)


def test_restoring_reads_each_file_once(store: Path, s3: S3Server, tmp_path: Path) -> None:
    manifest = create_backup(Options(store, open_backup("s3://lake/once/one", s3.options))).manifest
    with faulty(s3.endpoint) as (endpoint, faults):
        restore_backup(open_backup("s3://lake/once/one", replace(s3.options, endpoint=endpoint)), tmp_path / "restored")
    pieces = {name: -(-file.data // (8 << 20)) for name, file in manifest.files.items()}
    reads = [request for request in faults.seen if request.startswith("GET") and "list-type" not in request]
    assert len(reads) == sum(pieces.values()) + 1, "and the manifest"
    assert faults.sent_bytes < manifest.data_bytes + 200_000
    heads = [request for request in faults.seen if request.startswith("HEAD")]
    assert len(heads) == sum(map(bool, pieces.values()))


@pytest.mark.parametrize("part", ["config/topics.json", "commitlog/"])
def test_damage_that_restoring_finds_leaves_nothing(store: Path, storage: Storage, tmp_path: Path, part: str) -> None:
    backup = StoredBackup(storage, "one")
    files = create_backup(Options(store, backup)).manifest.files
    name = next(name for name, file in files.items() if name.startswith(part) and file.data > 100)
    key = backup.key_of(name, files[name])
    storage.put(key, storage.read(key)[:-1] + b"?")
    with pytest.raises(BackupError, match=f"is damaged: {name} has changed"):
        restore_backup(backup, tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["backups"]
