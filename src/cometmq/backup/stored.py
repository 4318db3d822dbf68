"""A backup in an object store or on HDFS.

The last part of the URL is the backup's name. The layout below the rest of the URL is::

    <backup>/store/<name>          files that the broker was writing to
    <backup>/manifest.json         written last, by a conditional write
    _files/<SHA-256>               sealed files, shared by all backups here
    _deleted/<backup>-<id>.json    manifests of deleted backups

A file is stored without the zeros at its end, and is not stored if it contains only zeros. A sealed file is hashed
first, and uploaded only if no backup has it.

:meth:`StoredBackup.delete` removes sealed files that no manifest names. A backup that is being created may reuse files
from a backup that is deleted at the same time. So these files are kept for a day, and so are files that no manifest has
ever named.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from cometmq.backup.copies import PIECE_BYTES, content_end
from cometmq.backup.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    BackupError,
    Manifest,
    StoredFile,
    decode_manifest,
    incomplete,
)
from cometmq.backup.place import STORE, Added, BackupPlace, not_empty
from cometmq.storage import ObjectExistsError, ObjectNotFoundError, Storage, StorageError, StorageUnavailableError

_FILES: Final = "_files"
_DELETED: Final = "_deleted"
_SPARED_MS: Final = 24 * 3_600_000
_READ_BYTES: Final = 8 << 20


class StoredBackup(BackupPlace):
    """A backup in an object store or on HDFS."""

    def __init__(self, storage: Storage, backup: str) -> None:
        """Use the backup with this name in a storage that contains backups."""
        self._storage = storage
        self._backup = backup

    @property
    def name(self) -> str:
        """The backup's URL."""
        return self._storage.describe(self._backup)

    @property
    def storage(self) -> Storage:
        """The storage that contains the backups."""
        return self._storage

    def key_of(self, name: str, file: StoredFile) -> str:
        """Return the key of the object with a file's content, without the zeros at its end."""
        return _sealed_key(file) if file.sealed else self._key(name)

    def prepare(self) -> None:
        """Check that the place is empty; see :meth:`BackupPlace.prepare`."""
        if next(self._storage.list_objects(self._backup), None) is not None:
            raise not_empty(self.name)

    def beside(self) -> list[BackupPlace]:
        """Return the complete backups in the same storage."""
        return self.all_in(self._storage)

    @classmethod
    def all_in(cls, storage: Storage) -> list[BackupPlace]:
        """Return the complete backups in a storage."""
        return [cls(storage, name) for name, is_complete in _backups(storage) if is_complete]

    def read_manifest(self) -> Manifest:
        """Read the manifest; see :meth:`BackupPlace.read_manifest`."""
        try:
            text = self._storage.read(f"{self._backup}/{MANIFEST}", 0, MAX_MANIFEST_BYTES + 1)
        except ObjectNotFoundError:
            raise incomplete(self.name) from None
        return decode_manifest(self.name, text)

    def add(self, path: Path, name: str, *, data: int | None = None) -> StoredFile:
        """Upload a file; see :meth:`BackupPlace.add`."""
        stat = path.stat()
        with path.open("rb", buffering=0) as file:
            end = content_end(file.fileno()) if data is None else data
            digest = hashlib.sha256()
            if end:
                with self._storage.open_writer(self._key(name)) as upload:
                    copied = _copy(file, upload, end, digest)
            else:
                copied = 0
        return StoredFile(max(stat.st_size, copied), copied, digest.hexdigest(), stat.st_mtime_ns)

    def add_sealed(self, path: Path, name: str, previous: BackupPlace | None, known: StoredFile | None) -> Added:
        """Upload a file unless a backup has it; see :meth:`BackupPlace.add_sealed`."""
        if known is not None:
            return Added(known, "reused")
        stat = path.stat()
        with path.open("rb", buffering=0) as file:
            end = content_end(file.fileno())
            digest = hashlib.sha256()
            _copy(file, None, end, digest)
            added = StoredFile(stat.st_size, end, digest.hexdigest(), stat.st_mtime_ns, sealed=True)
            key = _sealed_key(added)
            if not end or self._storage.stat(key) is not None:
                return Added(added, "reused" if end else "copied")
            file.seek(0)
            again = hashlib.sha256()
            with self._storage.open_writer(key) as upload:
                _copy(file, upload, end, again)
                if again.digest() != digest.digest():
                    raise BackupError(
                        f"{path} is changing, although the broker should no longer write to it", next_step="try again"
                    )
        return Added(added, "copied")

    def remove(self, name: str) -> None:
        """Remove a file that was added."""
        self._storage.delete([self._key(name)])

    def finish(self, manifest: Manifest) -> None:
        """Check that all files exist, and create the manifest; see :meth:`BackupPlace.finish`."""
        present = {found.key.rpartition("/")[2]: found.size for found in self._storage.list_objects(_FILES)}
        for name, file in manifest.files.items():
            if file.sealed and file.data and present.get(file.sha256) != file.data:
                raise BackupError(f"{name} is missing at {self._storage.url}", next_step="create the backup again")
        try:
            self._storage.create(f"{self._backup}/{MANIFEST}", manifest.encode())
        except ObjectExistsError:
            raise not_empty(self.name) from None

    def damage_of(self, name: str, file: StoredFile) -> str:
        """Read the file and compare its checksum; see :meth:`BackupPlace.damage_of`."""
        try:
            return self._read_file(name, file, lambda _: None)
        except StorageUnavailableError as error:
            return f"cannot be read: {error.message}"

    def unknown_files(self, files: Mapping[str, StoredFile]) -> Iterator[str]:
        """Yield the names of objects that have no entry in the manifest."""
        beginning = f"{self._backup}/{STORE}/"
        for found in self._storage.list_objects(f"{self._backup}/{STORE}"):
            name = found.key.removeprefix(beginning)
            if name not in files or files[name].sealed:
                yield name

    def restore(self, name: str, file: StoredFile, target: Path) -> str:
        """Download a file; see :meth:`BackupPlace.restore`."""
        with target.open("xb", buffering=0) as local:

            def write(piece: bytes) -> None:
                rest = memoryview(piece)
                while rest:
                    rest = rest[local.write(rest) :]

            damage = self._read_file(name, file, write)
            local.truncate(file.size)
            os.fsync(local.fileno())
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
        return damage

    def delete(self) -> None:
        """Delete the backup, and then the files that no manifest names. The manifest is kept for a day under another
        name.
        """
        manifest = self.read_manifest()
        self._storage.create(f"{_DELETED}/{self._backup}-{uuid.uuid4().hex}.json", manifest.encode())
        self._storage.delete([f"{self._backup}/{MANIFEST}"])
        self._storage.delete([found.key for found in self._storage.list_objects(self._backup)])
        self._sweep()

    def _sweep(self) -> None:
        """Delete sealed files that no backup needs, and backups that were interrupted more than a day ago.

        Backups that were deleted less than a day ago still need their sealed files.
        """
        clock = f"{_DELETED}/clock-{uuid.uuid4().hex}"
        self._storage.put(clock, b"x")
        written = self._storage.stat(clock)
        assert written is not None
        oldest_ms = written.modified_ms - _SPARED_MS
        self._storage.delete([clock])
        backups = [(StoredBackup(self._storage, name), is_complete) for name, is_complete in _backups(self._storage)]
        complete = [backup for backup, is_complete in backups if is_complete]
        needed = {file.sha256 for backup in complete for file in backup.read_manifest().files.values()}
        old = []
        for found in self._storage.list_objects(_DELETED):
            if found.modified_ms < oldest_ms:
                old.append(found.key)
            elif found.key.endswith(".json"):
                deleted = decode_manifest(self._storage.describe(found.key), self._storage.read(found.key))
                needed |= {file.sha256 for file in deleted.files.values()}
        unneeded = [
            found.key
            for found in self._storage.list_objects(_FILES)
            if found.modified_ms < oldest_ms and found.key.rpartition("/")[2] not in needed
        ]
        self._storage.delete([*unneeded, *old])
        for backup, is_complete in backups:
            if not is_complete:
                interrupted = list(self._storage.list_objects(backup._backup))
                if all(found.modified_ms < oldest_ms for found in interrupted):
                    self._storage.delete([found.key for found in interrupted])

    def _read_file(self, name: str, file: StoredFile, write: Callable[[bytes], None]) -> str:
        """Read a file once, and call ``write`` with its pieces. Return what is wrong with the file.

        :raises StorageUnavailableError: the storage does not answer.
        """
        digest = hashlib.sha256()
        try:
            if file.data:
                key = self.key_of(name, file)
                found = self._storage.stat(key)
                if found is None:
                    return "is missing"
                if found.size != file.data:
                    return f"has {found.size:,} bytes instead of {file.data:,}"
                for start in range(0, file.data, _READ_BYTES):
                    piece = self._storage.read(key, start, min(start + _READ_BYTES, file.data))
                    digest.update(piece)
                    write(piece)
        except StorageUnavailableError:
            raise
        except StorageError as error:
            return f"cannot be read: {error.message}"
        return "" if digest.hexdigest() == file.sha256 else "has changed since it was stored"

    def _key(self, name: str) -> str:
        return f"{self._backup}/{STORE}/{name}"


def _backups(storage: Storage) -> Iterator[tuple[str, bool]]:
    """Yield the name of each backup, and whether its manifest exists."""
    for name in storage.list_directories():
        if not name.startswith("_"):
            yield name, storage.stat(f"{name}/{MANIFEST}") is not None


def _sealed_key(file: StoredFile) -> str:
    return f"{_FILES}/{file.sha256}"


def _copy(source: IO[bytes], target: IO[bytes] | None, size: int, digest: hashlib._Hash) -> int:
    """Copy and hash up to ``size`` bytes. Return the number of bytes copied."""
    copied = 0
    while copied < size:
        piece = source.read(min(PIECE_BYTES, size - copied))
        if not piece:
            break
        digest.update(piece)
        if target is not None:
            target.write(piece)
        copied += len(piece)
    return copied
