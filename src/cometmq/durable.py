"""Writes durable files: each is written under a temporary name, flushed, and then renamed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def flush_directory(path: Path) -> None:
    """Flush a directory, so that names created, renamed or removed in it survive a power cut.

    Do nothing on Windows, which cannot open a directory, and makes names durable by itself.
    """
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_file(path: Path) -> None:
    """Flush a file, so that its content survives a power cut.

    :raises OSError: the flush failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock during the ``with`` block; other processes wait for it. The file is created if needed.

    :raises OSError: the file cannot be opened.
    """
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open_private(path: str, flags: int) -> int:
    Path(path).unlink(missing_ok=True)
    return os.open(path, flags, 0o600)


def replace_file(
    path: Path, content: bytes | Iterable[bytes], *, backup: Path | None = None, private: bool = False
) -> None:
    """Replace the file at ``path`` with ``content``, which may have many pieces; create its directory if needed.

    At any moment ``path`` or ``backup`` is complete: the new file is written as ``<name>.tmp``, the old one is linked
    as ``backup`` if ``backup`` is given, and then the new file is renamed to ``path``.

    :param private: if true, only the user of this process may read the file.
    :raises OSError: the file cannot be written; the old one is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with open(fresh, "wb", opener=_open_private if private else None) as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    if backup is not None and path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)
    flush_directory(path.parent)
