"""Disk: the system calls with which the store changes its files.

Tests replace it with a Disk that fails like a real one: without space, with I/O errors or with failed flushes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cometmq.durable import flush_directory, make_directory, unless_written


class Disk:
    """Writes to files, allocates their disk space and flushes them. Every failure is raised as an ``OSError``."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write all of ``data`` at byte ``at``.

        :raises OSError: some or all of the data was not written.
        """
        written = os.pwrite(fd, data, at)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(fd, view[written:], at + written)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Allocate disk space for ``size`` bytes starting at ``at``, and extend the file; existing bytes do not
        change."""
        os.posix_fallocate(fd, at, size)

    def flush(self, fd: int) -> None:
        """Flush the file, so that its bytes survive a power cut."""
        os.fdatasync(fd)

    def flush_all(self, path: Path) -> None:
        """Flush all files of the file system that contains ``path``, if the system can do that.

        Afterwards, :meth:`flush` of each of many new files costs little; it must follow, since this does not report
        their errors. It also waits for what other programs have written.
        """
        flush = getattr(ctypes.CDLL(None), "syncfs", None)
        if flush is not None:
            with open_file(path, os.O_RDONLY) as fd:
                flush(fd)

    def used_ratio(self, path: Path) -> float:
        """Return the used share (0 to 1) of the file system that contains ``path``, computed in the same way as ``df``
        does."""
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        usable = used + stat.f_bavail
        return used / usable if usable else 1.0


@contextmanager
def open_file(path: str | Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open a file descriptor and close it at the end of the ``with`` block."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def delete_large_file(path: Path, mapping: object | None = None) -> None:
    """Delete a file if it exists, and let a thread free its disk space; this takes a quarter of a second for 1 GiB.

    :param mapping: the file's ``mmap``; slices of it remain readable, and the space is freed when the last slice is
        released.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the space is freed when the last reference is closed
    except OSError:
        path.unlink(missing_ok=True)
        return
    path.unlink(missing_ok=True)
    if mapping is None:
        _close_in_thread(fd)
    else:
        weakref.finalize(mapping, _close_in_thread, fd).atexit = False


def _close_in_thread(fd: int) -> None:
    try:
        threading.Thread(target=os.close, args=(fd,), name="cometmq-free-space", daemon=True).start()
    except RuntimeError:  # no more threads can be started
        os.close(fd)


def replace_whole(path: Path, content: bytes, disk: Disk) -> None:
    """Replace a file durably. Create its directory if needed.

    :raises OSError: the file cannot be written; the old one is unchanged.
    """
    make_directory(path.parent)
    fresh = path.with_suffix(".tmp")
    with unless_written(fresh), open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        disk.write(fd, content, 0)
        disk.flush(fd)
    fresh.replace(path)
    flush_directory(path.parent)
