"""What a power cut leaves of a store: pages and names that were flushed, and some of the others.

A page of a file that was not flushed is on the disk or not, each on its own; the file's length is the old one or the
new one. A name in a directory (of a new, renamed or deleted file) is there for sure only after a flush of the
directory.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pytest

_CALLS: Final = ("fsync", "fdatasync", "pwrite", "replace", "rename", "unlink", "mkdir")
_PAGE_BYTES: Final = 4_096
Note = TypeVar("Note")


class PowerCuts(Generic[Note]):
    """Copies what is on the disk before some system calls.

    :param root: the directory of the store.
    :param copies: an empty directory for the copies.
    :param every: the mean number of system calls between two copies.
    :param note: called before each copy; what it returns is kept beside the copy in ``images``.
    """

    def __init__(self, root: Path, copies: Path, every: int, random_: random.Random, note: Callable[[], Note]) -> None:
        self.images: list[tuple[Path, Note]] = []
        self._root = str(root)
        self._copies = copies
        self._every = every
        self._random = random_
        self._calls_to_copy = every
        self._note = note
        self._lock = threading.RLock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        """Descriptors of the flushed files, so that no other file gets their inodes."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Make copies while the ``with`` block runs, and one at its end."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            yield
            with self._lock:
                self._copy()
        for fd in self._held.values():
            os.close(fd)

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self._calls_to_copy -= 1
                if not self._calls_to_copy:
                    self._copy()
                    self._calls_to_copy = self._random.randrange(1, 2 * self._every)
                result = call(*arguments, **named)
                if name in ("fsync", "fdatasync"):
                    self._flushed(arguments[0])
                return result

        return watched

    def _flushed(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(self._root) and not self._root.startswith(path):
            return
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = _names_in(path)
        elif not path.endswith(" (deleted)"):
            self._contents[status.st_ino] = Path(path).read_bytes()
            if status.st_ino not in self._held:
                self._held[status.st_ino] = os.dup(fd)

    def _copy(self) -> None:
        self._calls_to_copy = 0  # its own calls make none
        note, copy = self._note(), self._copies / str(len(self.images))
        try:
            above = Path(self._root).parent
            if Path(self._root).name in self._names.get(str(above), {}):
                self._copy_directory(self._root, copy / "store")
        except FileNotFoundError:  # a thread has just removed it
            shutil.rmtree(copy)
        else:
            self.images.append((copy, note))

    def _copy_directory(self, directory: str, copy: Path) -> None:
        copy.mkdir(parents=True)
        versions = (_names_in(directory), self._names.get(directory, {}))
        for name in set(versions[0]) | set(versions[1]):
            inode = self._random.choice(versions).get(name)
            path = os.path.join(directory, name)
            if inode is None or name == "lock":
                continue
            if os.path.isdir(path):
                self._copy_directory(path, copy / name)
            else:
                (copy / name).write_bytes(self._left_of(path, inode))

    def _left_of(self, path: str, inode: int) -> bytes:
        flushed = self._contents.get(inode, b"")
        now = flushed
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == inode:
                now = Path(path).read_bytes()
        size = len(self._random.choice((now, now, flushed)))
        chance = self._random.choice((0, 0.1, 0.5, 0.9, 1))
        left = bytearray(size)
        for at in range(0, size, _PAGE_BYTES):
            version = now if self._random.random() < chance else flushed
            page = version[at : min(at + _PAGE_BYTES, size)]
            left[at : at + len(page)] = page
        return bytes(left)


def _names_in(directory: str) -> dict[str, int]:
    with os.scandir(directory) as found:
        return {entry.name: entry.inode() for entry in found}
