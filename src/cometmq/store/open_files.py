"""Bounds the files that a store keeps open for reading: each holds a descriptor, and there may be any number."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path


class MappedFiles:
    """The mappings of queue files: when there are too many, the one that was made first is given up.

    Each holds a descriptor, since Python's ``mmap`` keeps a copy of its file's. Slices that are out stay readable,
    and who needs the file again maps it again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: deque[tuple[dict[int, memoryview], int]] = deque()

    def add(self, views: dict[int, memoryview], start: int) -> None:
        """Count a mapping that was entered in ``views`` at ``start``."""
        self._made.append((views, start))
        if len(self._made) > self._most:
            views, start = self._made.popleft()
            views.pop(start, None)


class OpenFiles:
    """At most so many files open for reading; the one that was used least lately is closed. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, at: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``at``.

        :raises OSError: the file cannot be opened or read.
        """
        with self._lock:
            return os.pread(self._descriptor(path), size, at)

    def will_need(self, path: Path, places: Iterable[tuple[int, int]]) -> None:
        """Tell the kernel which places, each with its size, are read soon."""
        for at, size in places:
            with self._lock:
                os.posix_fadvise(self._descriptor(path), at, size, os.POSIX_FADV_WILLNEED)

    def close(self, path: Path) -> None:
        """Close one file, if it is open."""
        with self._lock:
            fd = self._open.pop(path, -1)
            if fd >= 0:
                os.close(fd)

    def __len__(self) -> int:
        return len(self._open)

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > self._most:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return fd
