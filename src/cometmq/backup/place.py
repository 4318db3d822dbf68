"""The place of a backup: a local directory, or a prefix in an object store or HDFS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cometmq.backup.manifest import BackupError, Manifest, StoredFile

STORE: Final = "store"
"""Directory for the store's files in a backup."""


class Added(NamedTuple):
    """A file that was added to a backup."""

    file: StoredFile
    way: Literal["copied", "shared", "reused"]
    """``shared`` with the store, or ``reused`` from an earlier backup."""


class BackupPlace(ABC):
    """The files and the manifest of one backup. A backup without a manifest is incomplete."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Path or URL, in the form that the user wrote."""

    @abstractmethod
    def prepare(self) -> None:
        """Check that the place is empty, and create it if necessary.

        :raises BackupError: the place is not empty.
        """

    @abstractmethod
    def beside(self) -> list[BackupPlace]:
        """Return the complete backups in the same directory or below the same URL, whose sealed files can be reused."""

    @abstractmethod
    def read_manifest(self) -> Manifest:
        """Read the manifest.

        :raises BackupError: the manifest is missing or damaged, or has a version that cannot be read.
        """

    @abstractmethod
    def add(self, path: Path, name: str, *, data: int | None = None) -> StoredFile:
        """Copy a file to which the broker may be writing.

        :param data: number of bytes to copy; zeros follow them in the file. By default, all bytes.
        :raises FileNotFoundError: the file was removed during the backup.
        """

    @abstractmethod
    def add_sealed(self, path: Path, name: str, previous: BackupPlace | None, known: StoredFile | None) -> Added:
        """Add a file that the broker no longer writes to, without copying it if possible.

        :param previous: an earlier backup next to this one.
        :param known: the file's entry in the earlier backup's manifest, if its size and modification time are still the
            same.
        :raises FileNotFoundError: the file was removed during the backup.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that was added."""

    @abstractmethod
    def finish(self, manifest: Manifest) -> None:
        """Write the manifest after all other files are durable.

        :raises BackupError: a reused file was removed during the backup.
        """

    @abstractmethod
    def damage_of(self, name: str, file: StoredFile) -> str:
        """Describe the damage of a file in the backup; return an empty string if the file is intact."""

    @abstractmethod
    def unknown_files(self, files: Mapping[str, StoredFile]) -> Iterable[str]:
        """Return the names of files that are in the backup but not in its manifest."""

    @abstractmethod
    def restore(self, name: str, file: StoredFile, target: Path) -> str:
        """Copy a file to a new local file, flush it, and compare its content with its checksum. Return a description of
        the file's damage, or an empty string if it is intact.

        :raises OSError: the file cannot be written.
        :raises StorageUnavailableError: the storage does not answer.
        """

    @abstractmethod
    def delete(self) -> None:
        """Delete the backup, and the sealed files that no other backup needs."""


def newest(places: Iterable[BackupPlace], source: str) -> BackupPlace | None:
    """Return the newest backup of a store. Damaged backups are ignored."""
    found: BackupPlace | None = None
    created_ms = -1
    for place in places:
        try:
            manifest = place.read_manifest()
        except BackupError:
            continue
        if manifest.source == source and manifest.created_ms > created_ms:
            found, created_ms = place, manifest.created_ms
    return found


def not_empty(name: str) -> BackupError:
    """Return the error for a target that is not empty."""
    return BackupError(f"{name} is not empty", next_step="use a directory that does not exist yet")
