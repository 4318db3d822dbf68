"""Files that survive a power cut: written beside their place, flushed, then put there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path


def flush_directory(path: Path) -> None:
    """Make names created, renamed or removed in ``path`` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_file(path: Path) -> None:
    """Make what was written to ``path`` survive a power cut.

    :raises OSError: it could not be written.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def flushing_beside() -> Iterator[Callable[[Path], None]]:
    """A :func:`flush_file` for the block that does not wait: a thread flushes, and the end of the block waits for it.

    :raises OSError: at that end; one of the files could not be written.
    """
    with ThreadPoolExecutor(1, "flush") as thread:
        under_way: list[Future[None]] = []
        yield lambda path: under_way.append(thread.submit(flush_file, path))
        for flush in under_way:
            flush.result()


def replace_file(path: Path, content: bytes | Iterable[bytes], *, backup: Path | None = None) -> None:
    """Put a file with ``content``, whole or in pieces, at ``path``; its directory is made where needed.

    At every moment ``path`` or ``backup`` is whole: the new file is written as ``<name>.tmp``, what stood at
    ``path`` is kept as ``backup`` if one is named, and then the new file takes its place.

    :raises OSError: it could not be written; the old file is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    if backup is not None and path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)
    flush_directory(path.parent)
