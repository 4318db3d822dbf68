"""Verifies a backup, and restores it into an empty directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.backup.manifest import BackupError, Manifest
from cometmq.backup.place import BackupPlace
from cometmq.durable import flush_directory
from cometmq.errors import reason_of
from cometmq.paths import local_path
from cometmq.store.version import require_readable

_SHOWN: Final = 10
_LOG: Final = "commitlog/"


def verify_backup(backup: BackupPlace, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Check that a backup contains exactly the files in its manifest, with the same sizes and checksums.

    :param report: function that is called with the name of each file.
    :raises BackupError: the backup does not exist, has another version, or is damaged. The error names the damaged
        files.
    """
    manifest = backup.read_manifest()
    wrong = []
    for name, file in manifest.files.items():
        report(name)
        if why := backup.damage_of(name, file):
            wrong.append(f"{name} {why}")
    _demand_intact(backup, manifest, wrong)
    return manifest


def _demand_intact(backup: BackupPlace, manifest: Manifest, wrong: list[str]) -> None:
    wrong += [f"{name} does not belong to it" for name in backup.unknown_files(manifest.files)]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BackupError(
            f"{backup.name} is damaged: {'; '.join(wrong[:_SHOWN])}{more}", next_step="create another backup"
        )


def restore_backup(backup: BackupPlace, target: Path, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Copy a backup's store to a directory, which appears once the copy is complete and verified.

    Each file is read once. The copy does not share any file that a broker could change with the backup.

    :param target: a missing or empty directory, the broker's ``storePathRootDir``.
    :raises BackupError: the backup is damaged, the target is not empty, or a file cannot be written.
    :raises NewerStoreError: a newer version of CometMQ wrote the store, and this version cannot read it.
    """
    target = local_path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(
            f"{target} is not empty; nothing was restored",
            next_step="move the old store to another directory and repeat the command",
        )
    manifest = backup.read_manifest()
    beside = target.absolute().with_name(f".{target.name}.restoring")
    try:
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir(parents=True)
        _restore(backup, manifest, beside, report)
        for directory, _, _ in os.walk(beside):
            flush_directory(Path(directory))
        if target.exists():
            target.rmdir()
        beside.rename(target)
        flush_directory(target.absolute().parent)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise BackupError(f"nothing was restored: {where}{reason_of(error)}") from error
    return manifest


def _restore(backup: BackupPlace, manifest: Manifest, root: Path, report: Callable[[str], None]) -> None:
    """Restore the tables, check that this version can read the store, and then restore the log.

    :raises BackupError: a file is damaged, or has no entry in the manifest.
    """
    wrong: list[str] = []

    def restore(*, log: bool) -> None:
        for name, file in manifest.files.items():
            if name.startswith(_LOG) == log:
                report(name)
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if why := backup.restore(name, file, target):
                    wrong.append(f"{name} {why}")

    restore(log=False)
    if not wrong:
        require_readable(root)
    restore(log=True)
    _demand_intact(backup, manifest, wrong)
