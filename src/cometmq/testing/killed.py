"""Leaves a broker's files as if the broker had been killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path


async def stop_as_killed(stop: Callable[[], Awaitable[None]], root: Path) -> None:
    """Call ``stop`` of a broker whose connections are cut, then restore its directory to the state before that."""
    left = root.with_name(f"{root.name}.killed")
    try:
        # No request is answered from here on, but worker threads finish the work that they have begun. A kill ends all
        # threads at one moment, so the copy is repeated until nothing has changed while it was made.
        while not _copied(root, left):
            shutil.rmtree(left)
    finally:
        await stop()
    shutil.rmtree(root)
    left.rename(root)


def _copied(root: Path, left: Path) -> bool:
    """Copy a directory; return whether nothing in it has changed in the meantime.

    :raises OSError: files could not be copied although they are there.
    """
    before = _state(root)
    try:
        shutil.copytree(root, left, ignore=shutil.ignore_patterns("*.tmp"), copy_function=_copy_if_there)
    except shutil.Error:
        if _state(root) == before:
            raise
        return False  # a worker thread has removed a directory
    return _state(root) == before


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return the inode, size and modification time of each file, and the inode of each directory."""
    found = {}
    for directory, _, names in os.walk(root):
        with suppress(FileNotFoundError):
            found[directory] = Path(directory).stat().st_ino, 0, 0
        for name in names:
            path = f"{directory}/{name}"
            with suppress(FileNotFoundError):
                stat = Path(path).stat()
                found[path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless a worker thread has removed it."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
