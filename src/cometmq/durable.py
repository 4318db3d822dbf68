"""Writes durable files: each is written under a temporary name, flushed, and then renamed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


def make_directory(path: Path) -> None:
    """Create a directory and its parents, so that their names survive a power cut. Do nothing if it exists.

    :raises OSError: it cannot be created or flushed.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        flush_directory(path.parent)


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


@contextmanager
def unless_written(fresh: Path) -> Iterator[None]:
    """Delete the file if the ``with`` block fails to write it, since a part of it would take the last space of a full
    disk.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


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
    make_directory(path.parent)
    fresh = path.with_name(path.name + ".tmp")
    with unless_written(fresh), open(fresh, "wb", opener=_open_private if private else None) as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    if backup is not None and path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)
    flush_directory(path.parent)
