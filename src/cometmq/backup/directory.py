"""A backup in a local directory: sealed files share blocks with the store or with the previous backup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from cometmq.backup.copies import clone, copy_data, digest_of, has_data_after, link
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
from cometmq.durable import flush_directory, flush_file, make_directory, replace_file
from cometmq.errors import reason_of


class DirectoryBackup(BackupPlace):
    """A backup in a directory."""

    def __init__(self, directory: Path, *, share: bool = True) -> None:
        """Use a directory for the backup.

        :param share: True to share sealed files with the store if the file system supports it.
        """
        self.directory = directory
        self._root = directory / STORE
        self._share = share

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.directory)

    def prepare(self) -> None:
        """Create the directory; see :meth:`BackupPlace.prepare`."""
        make_directory(self.directory)
        if any(self.directory.iterdir()):
            raise not_empty(self.name)
        self._root.mkdir()

    def beside(self) -> list[BackupPlace]:
        """Return the complete backups in the parent directory."""
        return self.all_in(self.directory.absolute().parent)

    @classmethod
    def all_in(cls, directory: Path) -> list[BackupPlace]:
        """Return the complete backups in a directory. If the directory is unreadable, there are none."""
        try:
            found = [path for path in directory.iterdir() if (path / MANIFEST).is_file()]
        except OSError:
            return []
        return [cls(path) for path in sorted(found)]

    def read_manifest(self) -> Manifest:
        """Read the manifest; see :meth:`BackupPlace.read_manifest`."""
        path = self.directory / MANIFEST
        try:
            with path.open("rb") as file:
                text = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise incomplete(self.name) from None
        except OSError as error:
            raise BackupError(f"{path}: {reason_of(error)}") from error
        return decode_manifest(self.name, text)

    def add(self, path: Path, name: str, *, data: int | None = None) -> StoredFile:
        """Copy a file; see :meth:`BackupPlace.add`."""
        return self._copy(path, name, data=data)

    def add_sealed(self, path: Path, name: str, previous: BackupPlace | None, known: StoredFile | None) -> Added:
        """Link or clone a file if possible; see :meth:`BackupPlace.add_sealed`."""
        target = self._target(name)
        if (
            known is not None
            and isinstance(previous, DirectoryBackup)
            and link(previous.directory / STORE / name, target)
        ):
            return Added(known, "reused")
        stat = path.stat()
        if not (self._share and (clone(path, target) or link(path, target))):
            return Added(self._copy(path, name, sealed=True), "copied")
        flush_file(target)
        digest = digest_of(target, stat.st_size)
        assert digest is not None
        return Added(StoredFile(stat.st_size, stat.st_size, digest, stat.st_mtime_ns, sealed=True), "shared")

    def remove(self, name: str) -> None:
        """Remove a file that was added."""
        (self._root / name).unlink(missing_ok=True)

    def finish(self, manifest: Manifest) -> None:
        """Flush all directories, and write the manifest."""
        for directory, _, _ in os.walk(self._root):
            flush_directory(Path(directory))
        replace_file(self.directory / MANIFEST, manifest.encode())

    def damage_of(self, name: str, file: StoredFile) -> str:
        """Compare size and checksum; see :meth:`BackupPlace.damage_of`."""
        path = self._root / name
        try:
            return _wrong_size(path, file) or _wrong_content(digest_of(path, file.data), file)
        except OSError as error:
            return f"cannot be read: {reason_of(error)}"

    def unknown_files(self, files: Mapping[str, StoredFile]) -> Iterator[str]:
        """Yield the names of files that have no entry in the manifest."""
        for directory, _, names in os.walk(self._root):
            for one in names:
                name = (Path(directory) / one).relative_to(self._root).as_posix()
                if name not in files:
                    yield name

    def restore(self, name: str, file: StoredFile, target: Path) -> str:
        """Clone or copy a file; see :meth:`BackupPlace.restore`."""
        source = self._root / name
        if damage := _wrong_size(source, file):
            return damage
        digest: str | None
        if clone(source, target):
            flush_file(target)
            digest = digest_of(target, file.data)
        else:
            _, digest = copy_data(source, target, file.data, file.size)
            if has_data_after(source, file.data):
                digest = None
        shutil.copystat(source, target, follow_symlinks=False)
        return _wrong_content(digest, file)

    def delete(self) -> None:
        """Delete the manifest and then the directory, so that a partly deleted backup does not look complete."""
        (self.directory / MANIFEST).unlink()
        flush_directory(self.directory)
        shutil.rmtree(self.directory)

    def _copy(self, path: Path, name: str, *, data: int | None = None, sealed: bool = False) -> StoredFile:
        target = self._target(name)
        target.unlink(missing_ok=True)
        stat = path.stat()
        copied, digest = copy_data(path, target, data, stat.st_size if data is not None else None)
        shutil.copystat(path, target, follow_symlinks=False)
        return StoredFile(target.stat().st_size, copied, digest, stat.st_mtime_ns, sealed=sealed)

    def _target(self, name: str) -> Path:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def _wrong_size(path: Path, file: StoredFile) -> str:
    """Describe a file's fault if it is missing or has another size; otherwise, return an empty string."""
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        return "is missing"
    if path.is_symlink() or not path.is_file():
        return "is not a file"
    return "" if size == file.size else f"has {size:,} bytes instead of {file.size:,}"


def _wrong_content(digest: str | None, file: StoredFile) -> str:
    return "" if digest == file.sha256 else "has changed since it was stored"
