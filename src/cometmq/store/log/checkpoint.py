"""The ``checkpoint`` and ``lock`` files of a store (``StoreCheckpoint``, ``DefaultMessageStore``)."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import platform
import struct
from pathlib import Path
from typing import Final

from cometmq.store.disk import Disk, open_file
from cometmq.store.errors import StoreLockedError

CHECKPOINT_BYTES: Final = 4096
_TIMESTAMPS: Final = struct.Struct(">qqq")
_SLACK_MS: Final = 3_000
"""Safety margin (ms) that Apache subtracts from the oldest timestamp, since several messages can have the same
timestamp."""
_IS_MACOS: Final = platform.system() == "Darwin"
_FLOCK: Final = struct.Struct("@qqihh" if _IS_MACOS else "@hhqqi4x")
"""C's ``struct flock``, whose fields have another order on macOS."""
_FLOCK_ORDER: Final = (
    ("start", "length", "pid", "type", "whence") if _IS_MACOS else ("type", "whence", "start", "length", "pid")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The store timestamps (ms) up to which the log, the queues and the index are flushed."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0

    @property
    def safe_timestamp(self) -> int:
        """Return the time before which all records are flushed and have their queue units."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SLACK_MS)


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Read a checkpoint file. Return ``None`` if it is missing or too short, or if it contains no timestamps."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _TIMESTAMPS.size:
        return None
    values = _TIMESTAMPS.unpack_from(raw)
    return Checkpoint(*values) if all(0 <= value < 1 << 48 for value in values) else None


def save_checkpoint(path: Path, checkpoint: Checkpoint, disk: Disk) -> None:
    """Write a checkpoint file of 4,096 bytes in place, and flush it.

    :raises OSError: the file cannot be written.
    """
    with open_file(path, os.O_RDWR | os.O_CREAT) as fd:
        if os.fstat(fd).st_size != CHECKPOINT_BYTES:
            os.ftruncate(fd, CHECKPOINT_BYTES)
        disk.write(fd, _TIMESTAMPS.pack(*dataclasses.astuple(checkpoint)), 0)
        disk.flush(fd)


class StoreLock:
    """A POSIX lock on the file's first byte, which keeps a second broker (CometMQ or Apache) from using the store."""

    def __init__(self, path: Path) -> None:
        """Acquire the lock.

        :raises StoreLockedError: another process holds the lock.
        """
        key = os.fspath(path.absolute())
        if key in _HELD:
            raise _locked(path)
        self._key = key
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._fd)
            raise _locked(path) from error
        try:
            if os.fstat(self._fd).st_size == 0:
                os.pwrite(self._fd, b"lock", 0)
        except OSError:
            os.close(self._fd)
            raise
        _HELD.add(key)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _HELD.discard(self._key)


def lock_holder(path: Path) -> int | None:
    """Return the number of the process that has locked a store, or ``None`` if the store is not locked.

    No lock is acquired, so a broker can start at the same time. The calling process must not hold the lock, since POSIX
    releases it when any descriptor of the file is closed. The number is 0 if the process is not visible, because it
    runs in another container or on another machine.

    :raises OSError: the file exists, but cannot be read.
    """
    try:
        with open_file(path, os.O_RDONLY) as fd:
            asked = {"type": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": 0, "length": 1, "pid": 0}
            found = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*(asked[field] for field in _FLOCK_ORDER)))
            answer = dict(zip(_FLOCK_ORDER, _FLOCK.unpack(found), strict=True))
    except FileNotFoundError:
        return None
    return None if answer["type"] == fcntl.F_UNLCK else max(answer["pid"], 0)


_HELD: set[str] = set()
"""Lock files held by this process. They are needed because a process can acquire the same POSIX lock twice."""


def _locked(path: Path) -> StoreLockedError:
    return StoreLockedError(
        f"{path.parent} is open in another process", next_step="stop the other broker, or give this one its own store"
    )
