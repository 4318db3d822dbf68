"""Verifies a backup, and restores it into an empty directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cometmq.backup.files import BackupFiles, flush_tree
from cometmq.backup.manifest import BackupError, Manifest
from cometmq.durable import flush_directory
from cometmq.errors import reason_of
from cometmq.paths import local_path
from cometmq.store.version import require_readable

_SHOWN = 10


def verify_backup(backup: Path, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Check that a backup has exactly the files of its manifest, with their sizes and checksums.

    :param report: function that is called with the name of each file.
    :raises BackupError: the directory is not a backup, has another version, or is damaged. The error names the damaged
        files.
    """
    files = BackupFiles(backup)
    manifest = files.manifest()
    wrong: list[str] = []
    for name, file in manifest.files.items():
        report(name)
        if damage := files.damage_of(name, file):
            wrong.append(f"{name} {damage}")
    wrong += [f"{name} does not belong to it" for name in files.names() if name not in manifest.files]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BackupError(f"{files} is damaged: {'; '.join(wrong[:_SHOWN])}{more}", next_step="create another backup")
    return manifest


def restore_backup(backup: Path, target: Path, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Verify a backup and copy its store to a directory, which appears once the copy is complete.

    The copy shares no file with the backup that a broker could change.

    :param target: a missing or empty directory, the broker's ``storePathRootDir``.
    :raises BackupError: the backup is damaged, the target is not empty, or a file cannot be written.
    :raises NewerStoreError: a newer CometMQ wrote the store, and this one cannot read it.
    """
    files, target = BackupFiles(backup), local_path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(
            f"{target} is not empty; nothing was restored", next_step="move the old store away and repeat the command"
        )
    manifest = verify_backup(files.root, report=report)
    beside = target.absolute().with_name(f".{target.name}.restoring")
    require_readable(files.store)
    try:
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir(parents=True)
        for name, file in manifest.files.items():
            report(name)
            files.restore(name, file, beside / name)
        flush_tree(beside)
        if target.exists():
            target.rmdir()
        beside.rename(target)
        flush_directory(target.absolute().parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        where = f"{error.filename}: " if error.filename else ""
        raise BackupError(f"nothing was restored: {where}{reason_of(error)}") from error
    return manifest
