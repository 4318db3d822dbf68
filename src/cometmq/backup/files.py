"""The files of a backup, with all file-system calls for them, so that another kind of storage replaces one class."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from cometmq.backup.copies import clone, copy_data, digest_of, link
from cometmq.backup.manifest import MANIFEST, MAX_MANIFEST_BYTES, STORE, BackupError, Manifest, StoredFile, decode
from cometmq.durable import flush_directory, flush_file, replace_file
from cometmq.errors import reason_of
from cometmq.paths import local_path


class BackupFiles:
    """The directory of a backup: a manifest, and copies of a store's files, named by their paths in the store."""

    def __init__(self, root: Path) -> None:
        """Store the directory, which may not exist yet.

        :raises PathError: the path has an unsupported scheme.
        """
        self.root: Final = local_path(root)
        self.store: Final = self.root / STORE

    def __str__(self) -> str:
        return str(self.root)

    # Manifest -------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        """Read the manifest.

        :raises BackupError: the manifest is missing, damaged, or of a version that cannot be read.
        """
        path = self.root / MANIFEST
        try:
            with path.open("rb") as file:
                text = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise BackupError(
                f"{self} is not a complete backup: it has no {MANIFEST}",
                next_step="create another one; cometmq backup create was interrupted, or never ran there",
            ) from None
        except OSError as error:
            raise BackupError(f"{path}: {reason_of(error)}") from error
        return decode(text, path)

    def finish(self, manifest: Manifest) -> None:
        """Flush the names of all files, then write the manifest, which completes the backup."""
        flush_tree(self.store)
        replace_file(self.root / MANIFEST, manifest.encode())

    # Writing --------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the directory.

        :raises BackupError: the directory exists and is not empty.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if any(self.root.iterdir()):
            raise BackupError(f"{self} is not empty", next_step="use a directory that does not exist yet")
        self.store.mkdir(parents=True)

    def copy(self, source: Path, name: str, data: int | None = None) -> StoredFile:
        """Copy a file of the store, and flush the copy. A copy that exists is replaced.

        :param data: number of bytes to copy; zeros follow up to the file's size. By default all bytes are copied.
        :raises FileNotFoundError: the file does not exist.
        """
        target = self._target(name)
        target.unlink(missing_ok=True)
        stat = source.stat()
        copied, digest = copy_data(source, target, data, stat.st_size if data is not None else None)
        shutil.copystat(source, target, follow_symlinks=False)
        return StoredFile(target.stat().st_size, copied, digest, stat.st_mtime_ns)

    def share(self, source: Path, name: str) -> StoredFile | None:
        """Store a file that no longer changes without copying it; None if the file system cannot share it.

        :raises FileNotFoundError: the file does not exist.
        """
        stat, target = source.stat(), self._target(name)
        if not (clone(source, target) or link(source, target)):
            return None
        flush_file(target)
        digest = digest_of(target, stat.st_size)
        assert digest is not None
        return StoredFile(stat.st_size, stat.st_size, digest, stat.st_mtime_ns, sealed=True)

    def reuse(self, previous: BackupFiles, name: str) -> bool:
        """Share a file with an earlier backup; return False if the file system cannot share it."""
        return link(previous.store / name, self._target(name))

    def delete(self, name: str) -> None:
        """Delete a copy, if it exists."""
        (self.store / name).unlink(missing_ok=True)

    def _target(self, name: str) -> Path:
        path = self.store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    # Reading --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all copies."""
        return [
            (Path(directory) / name).relative_to(self.store).as_posix()
            for directory, _, names in os.walk(self.store)
            for name in names
        ]

    def damage_of(self, name: str, file: StoredFile) -> str:
        """Return a description of the damage to a copy; an empty text if the copy is intact."""
        path = self.store / name
        try:
            size = path.lstat().st_size
            if path.is_symlink() or not path.is_file():
                return "is no file"
            if size != file.size:
                return f"has {size:,} bytes instead of {file.size:,}"
            return "" if digest_of(path, file.data) == file.sha256 else "has other content than when it was stored"
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {reason_of(error)}"

    def restore(self, name: str, file: StoredFile, target: Path) -> None:
        """Copy a file to a path outside the backup, and flush it. It shares no bytes that a broker could change.

        :raises OSError: the file cannot be read or written, or its content has changed.
        """
        source = self.store / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if clone(source, target):
            flush_file(target)
        else:
            _, digest = copy_data(source, target, file.data, file.size)
            if digest != file.sha256:
                raise OSError(5, "input/output error", str(source))
        shutil.copystat(source, target, follow_symlinks=False)


def flush_tree(root: Path) -> None:
    """Flush a directory and all directories below it."""
    for directory, _, _ in os.walk(root):
        flush_directory(Path(directory))
