"""Disks that fail, are full, or flush nothing, as a test says."""

from __future__ import annotations

from pathlib import Path

from cometmq.store.disk import Disk


class MoodyDisk(Disk):
    """A disk whose next write fails when told to, possibly after some of the bytes."""

    def __init__(self) -> None:
        self.fails_with: int | None = None
        self.after_bytes = 0

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if self.fails_with is not None:
            error, self.fails_with = self.fails_with, None
            super().write(fd, bytes(data)[: self.after_bytes], at)
            raise OSError(error, "on purpose")
        super().write(fd, data, at)


class MeteredDisk(Disk):
    """A disk that is as full as the test says."""

    ratio = 0.1
    queue_ratio = 0.1
    """Of the queues, the index and the timer."""

    def used_ratio(self, path: Path) -> float:
        return self.ratio if path.name == "commitlog" else self.queue_ratio


class NoFlushDisk(Disk):
    """Nothing here cuts the power."""

    def flush(self, fd: int) -> None:
        del fd
