"""Verifies a backup, and restores it into an empty directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cometmq.backup.copies import clone, copy_data, digest_of
from cometmq.backup.manifest import STORE, BackupError, Manifest, StoredFile, read_manifest
from cometmq.durable import flush_directory, flush_file
from cometmq.errors import reason_of
from cometmq.paths import local_path
from cometmq.store.version import demand_readable

_SHOWN = 10


def verify_backup(backup: Path, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Check that a backup has exactly the files of its manifest, with their sizes and checksums.

    :param report: function that is called with the name of each file.
    :raises BackupError: the directory is not a backup, has another version, or is damaged. The error names the damaged
        files.
    """
    backup = local_path(backup)
    manifest = read_manifest(backup)
    wrong: list[str] = []
    for name, file in manifest.files.items():
        report(name)
        why = _damage_of(backup / STORE / name, file)
        if why:
            wrong.append(f"{name} {why}")
    known = manifest.files.keys()
    for directory, _, names in os.walk(backup / STORE):
        for one in names:
            name = (Path(directory) / one).relative_to(backup / STORE).as_posix()
            if name not in known:
                wrong.append(f"{name} does not belong to it")
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BackupError(f"{backup} is damaged: {'; '.join(wrong[:_SHOWN])}{more}", next_step="create another backup")
    return manifest


def restore_backup(backup: Path, target: Path, *, report: Callable[[str], None] = lambda _: None) -> Manifest:
    """Verify a backup and copy its store to a directory, which appears once the copy is complete.

    The copy shares no file with the backup that a broker could change.

    :param target: a missing or empty directory, the broker's ``storePathRootDir``.
    :raises BackupError: the backup is damaged, the target is not empty, or a file cannot be written.
    :raises NewerStoreError: a newer CometMQ wrote the store, and this one cannot read it.
    """
    backup, target = local_path(backup), local_path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(
            f"{target} is not empty; nothing was restored", next_step="move the old store away and repeat the command"
        )
    manifest = verify_backup(backup, report=report)
    beside = target.absolute().with_name(f".{target.name}.restoring")
    demand_readable(backup / STORE)
    try:
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir(parents=True)
        for name, file in manifest.files.items():
            report(name)
            _restore(backup / STORE / name, beside / name, file)
        for directory, _, _ in os.walk(beside):
            flush_directory(Path(directory))
        if target.exists():
            target.rmdir()
        beside.rename(target)
        flush_directory(target.absolute().parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        where = f"{error.filename}: " if error.filename else ""
        raise BackupError(f"nothing was restored: {where}{reason_of(error)}") from error
    return manifest


def _damage_of(path: Path, file: StoredFile) -> str:
    """Return a description of the fault in a file; an empty text if the file is intact."""
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


def _restore(source: Path, target: Path, file: StoredFile) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone(source, target):
        flush_file(target)
    else:
        _, digest = copy_data(source, target, file.data, file.size)
        if digest != file.sha256:
            raise OSError(5, "input/output error", str(source))
    shutil.copystat(source, target, follow_symlinks=False)
