"""One job at a time in a directory."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.spark.errors import ArchiveError

LOCK: Final = "_lock"


@contextmanager
def locked(directory: Path, name: str = LOCK, *, wait: bool = False) -> Iterator[None]:
    """Hold a directory, which is made when it is not there, for one writer; the lock goes with the process.

    :param name: of the lock; others can be held beside it.
    :param wait: until it is free.
    :raises ArchiveError: another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArchiveError(
                f"another job is writing to {directory}", next_step="wait for it, or write to another directory"
            ) from error
        yield


@contextmanager
def locked_if_free(directory: Path) -> Iterator[bool]:
    """Hold a directory if no other process does; gives whether it is held."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
