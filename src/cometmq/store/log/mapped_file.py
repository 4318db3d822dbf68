"""MappedFile: a file of fixed size that is written by ``pwrite`` and read through a read-only mapping.

Its name is the offset of its first byte in 20 decimal digits. Since the mapping is read-only, a full disk cannot cause
a SIGBUS; a write for which there is no space raises ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Final

from cometmq.store.disk import Disk, open_file

_ZEROS: Final = bytes(1 << 18)
_PARTS_AT_ONCE: Final = 64
_NO_HOLES: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that cannot look for holes."""
_BLOCK_BYTES: Final = 512
"""Unit of ``st_blocks`` in bytes, which is the same on all file systems."""


def file_name(offset: int) -> str:
    """Format a file's offset as a file name of 20 decimal digits (``UtilAll.offset2FileName``)."""
    return f"{offset:020d}"


class MappedFile:
    """One file of a sequence, with its mapping, and with its descriptor while it is written.

    It has the sequence's bytes from ``start`` to ``end``. Before Python 3.13, the mapping has a descriptor of its own,
    so a file that is written needs two descriptors, and every other file one.
    """

    __slots__ = ("_fd", "_is_closed", "end", "path", "reserved", "size", "start", "view")

    def __init__(self, path: Path, start: int, size: int, *, flags: int = os.O_RDWR) -> None:
        """Open an existing file of exactly ``size`` bytes.

        :param flags: ``os.O_RDONLY`` for a file that is only read.
        """
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self._is_closed = False
        self._fd = os.open(path, flags | os.O_CLOEXEC)
        self.reserved = size if os.fstat(self._fd).st_blocks * _BLOCK_BYTES >= size else 0
        """Number of bytes whose disk space is known to be allocated."""
        try:
            self.view = memoryview(_mapped(self._fd, size))
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def fd(self) -> int:
        """The descriptor for writes and flushes, which is opened when it is needed; -1 once the file is closed.

        :raises OSError: the file cannot be opened.
        """
        if self._fd < 0 and not self._is_closed:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._fd

    def rest(self) -> None:
        """Close the descriptor until it is needed again. No other thread may use it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def opened(self) -> contextlib.AbstractContextManager[int]:
        """Open a descriptor for reads, for a ``with`` block. Any thread may call this.

        :raises OSError: the file cannot be opened.
        """
        return open_file(self.path, os.O_RDONLY)

    def close(self) -> None:
        """Close the descriptor. The mapping remains until its last slice is released."""
        if not self._is_closed:
            self._is_closed = True
            self.rest()
            self.view = memoryview(b"")


if sys.version_info >= (3, 13):

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ, trackfd=False)

else:

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)


def create_file(path: Path, size: int, disk: Disk, reserved: int | None = None) -> None:
    """Create a file of ``size`` zero bytes and allocate space for the first ``reserved`` bytes, or for all by default.

    :raises OSError: the disk is full, or the file already exists.
    """
    with open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        try:
            disk.allocate(fd, 0, size if reserved is None else reserved)
            os.truncate(fd, size)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise


def find_bytes(content: mmap.mmap, wanted: bytes, start: int, end: int) -> int:
    """Return the first position of ``wanted`` between two positions in a mapped file, or -1 if there is none.

    In Python 3.11.4 and older, ``mmap.find`` reads one byte past ``end``, which crashes at the end of a mapping.
    """
    last = len(content) - len(wanted)
    if end < len(content):
        return content.find(wanted, start, end)
    found = content.find(wanted, start, len(content) - 1)
    return last if found < 0 and start <= last and content[last:] == wanted else found


def first_data(fd: int, start: int, size: int) -> int:
    """Return the offset of the first nonzero byte at or after ``start``, or ``size`` if there is none.

    Holes, and allocated space that was never written, are skipped without being read.
    """
    # No read-ahead: it would put reserved space into the page cache, where it counts as data.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    at = start
    while True:
        parts = _data_parts(fd, at, size, _PARTS_AT_ONCE)
        for begin, end in parts:
            at = begin
            while at < end:
                block = os.pread(fd, min(len(_ZEROS), end - at), at)
                if not block:
                    return size
                if block != _ZEROS[: len(block)]:
                    return at + len(block) - len(block.lstrip(b"\0"))
                at += len(block)
        if len(parts) < _PARTS_AT_ONCE:
            return size


def data_end(fd: int, size: int) -> int:
    """Return the offset after the last nonzero byte before ``size``, or 0 if there is none.

    Holes, and allocated space that was never written, are skipped without being read.
    """
    for begin, end in reversed(_data_parts(fd, 0, size)):
        while end > begin:
            block = os.pread(fd, min(len(_ZEROS), end - begin), max(begin, end - len(_ZEROS)))
            used = len(block.rstrip(b"\0"))
            if used:
                return end - len(block) + used
            end -= len(block)
    return 0


def _data_parts(fd: int, start: int, size: int, most: int = sys.maxsize) -> list[tuple[int, int]]:
    """Return the first parts of a file that may have data, as begin and end, from ``start`` to ``size``.

    They must be known before one of them is read: in spite of the advice, the system reads ahead where an earlier read
    has left its mark in the page cache, and so each read of reserved space would make another part.
    """
    parts: list[tuple[int, int]] = []
    at = start
    while len(parts) < most and (part := data_part(fd, at, size)) is not None:
        parts.append(part)
        at = part[1]
    return parts


def data_part(fd: int, start: int, size: int) -> tuple[int, int] | None:
    """Return the begin and end of the first part of a file that may have data, from ``start`` to ``size``, if there is
    one.

    Some file systems know nothing about holes, and say that the question is invalid (WSL 1), or that a hole begins
    where data begins (some FUSE file systems, OpenZFS 2.1.0). Then all the rest may have data.
    """
    if start >= size:
        return None
    try:
        begin = os.lseek(fd, start, os.SEEK_DATA)
        end = os.lseek(fd, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole up to the end
            return None
        if error.errno not in _NO_HOLES:
            raise
        return start, size
    if begin < start or end <= begin:
        return start, size
    return None if begin >= size else (begin, min(end, size))


def clear_from(path: Path, at: int, size: int) -> None:
    """Zero every byte of the file starting at ``at``, and make the file ``size`` bytes long.

    Must not be called while that part of the file is mapped and read.
    """
    os.truncate(path, at)
    os.truncate(path, size)
