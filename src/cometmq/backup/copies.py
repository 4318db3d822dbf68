"""Copies files and computes checksums. Copies share blocks with the original if the file system supports it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

from cometmq.store.log.mapped_file import data_end, first_data

_FICLONE: Final = 0x40049409
"""Linux ``ioctl`` that makes a copy share its blocks with the original until a block is written."""
_CANNOT: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ETXTBSY}
)
PIECE_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(PIECE_BYTES)


def clone(source: Path, target: Path) -> bool:
    """Clone a file so that both files share blocks. Return False if the file system does not support this."""
    with source.open("rb") as original, target.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            target.unlink()
            return False
    return True


def link(source: Path, target: Path) -> bool:
    """Hard-link a file. Return False if the file system does not support this."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def copy_data(source: Path, target: Path, data: int | None = None, size: int | None = None) -> tuple[int, str]:
    """Copy the first bytes of a file and flush the copy. Return the number of bytes and their SHA-256.

    Zeros become holes in the copy, since new index files and logs are mostly empty.

    :param data: number of bytes to copy; by default all.
    :param size: size of the copy, which may end with a hole.
    """
    digest = hashlib.sha256()
    copied = 0
    with source.open("rb", buffering=0) as original, target.open("xb", buffering=0) as copy:
        while data is None or copied < data:
            piece = original.read(PIECE_BYTES if data is None else min(PIECE_BYTES, data - copied))
            if not piece:
                break
            digest.update(piece)
            if piece == _ZEROS[: len(piece)]:
                copy.seek(len(piece), os.SEEK_CUR)
            else:
                rest = memoryview(piece)
                while rest:
                    rest = rest[copy.write(rest) :]
            copied += len(piece)
        copy.truncate(max(size or 0, copied))
        os.fsync(copy.fileno())
    return copied, digest.hexdigest()


def digest_of(path: Path, data: int) -> str | None:
    """Return the SHA-256 of a file's first ``data`` bytes, or ``None`` if anything but zeros follows them."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        left = data
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            digest.update(piece)
            left -= len(piece)
    return None if has_data_after(path, data) else digest.hexdigest()


def has_data_after(path: Path, data: int) -> bool:
    """Return True if anything but zeros follows a file's first bytes."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return first_data(file.fileno(), data, size) < size


def content_end(file: int) -> int:
    """Return the number of bytes in an open file up to its last byte that is not zero.

    Afterwards, the file position is at the start.
    """
    end = data_end(file, os.fstat(file).st_size)
    os.lseek(file, 0, os.SEEK_SET)
    return end
