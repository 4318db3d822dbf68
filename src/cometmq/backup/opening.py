"""Opens backups by path or URL."""

from __future__ import annotations

from pathlib import Path

from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.place import BackupPlace
from cometmq.backup.stored import StoredBackup
from cometmq.paths import PathError
from cometmq.storage import Location, StorageOptions, open_storage


def open_backup(url: str | Path, options: StorageOptions | None = None, *, share: bool = True) -> BackupPlace:
    """Return the place of a backup.

    :param share: True to share sealed files with the store if a local file system supports it.
    :raises PathError: the URL has an unknown scheme, is incomplete, or names an entire bucket.
    """
    location = Location.parse(url)
    if location.kind == "local":
        return DirectoryBackup(Path(url) if isinstance(url, Path) else Path(location.path), share=share)
    above, _, name = location.path.rpartition("/")
    if not name:
        raise PathError(f"{url} is a whole bucket", next_step="name the backup: URL/backups/2026-11-23")
    return StoredBackup(open_storage(location.at(above), options), name)


def backups_in(url: str | Path, options: StorageOptions | None = None) -> list[BackupPlace]:
    """Return the complete backups in a directory, or below a URL.

    :raises PathError: the URL has an unknown scheme, or is incomplete.
    """
    location = Location.parse(url)
    if location.kind == "local":
        return DirectoryBackup.all_in(Path(location.path))
    return StoredBackup.all_in(open_storage(location, options))
