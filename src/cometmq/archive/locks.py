"""Locks of archives in local directories, which earlier versions rely on.

The chain of commits needs no lock. But earlier versions write commits without checking for others, and only these locks
stop them. They also refuse a second job at its start instead of at its first commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.archive.errors import ArchiveError
from cometmq.storage import Storage
from cometmq.storage.local import LocalStorage

LOCK: Final = "_lock"
"""Held by the job that archives."""
UPKEEP_LOCK: Final = "_upkeep_lock"
"""Held by a job that compacts, expires or vacuums."""
COMMIT_LOCK: Final = "_commit_lock"
"""Held while a process reads the last commit and writes the next one."""


def local_directory(storage: Storage) -> Path | None:
    """Return the directory of a local storage, or None for any other storage."""
    return Path(storage.url) if isinstance(storage, LocalStorage) else None


@contextmanager
def locked_if_free(storage: Storage, name: str = LOCK, *, wait: bool = False) -> Iterator[bool | None]:
    """Try to lock a local directory, which is created if it is missing. The lock ends with the process.

    Yield True if this process holds the lock now, False if another process holds it, and None if the storage is not
    local.

    :param wait: wait until the lock is free.
    """
    directory = local_directory(storage)
    if directory is None:
        yield None
        return
    import fcntl

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        else:
            is_locked = True
        yield is_locked


@contextmanager
def locked(storage: Storage, name: str = LOCK, *, wait: bool = False) -> Iterator[None]:
    """Lock a local directory; do nothing for other storages.

    :raises ArchiveError: another process holds the lock.
    """
    with locked_if_free(storage, name, wait=wait) as is_locked:
        if is_locked is False:
            raise ArchiveError(
                f"another job is writing to {storage.url}", next_step="wait for it, or write to another directory"
            )
        yield
