"""Disks that fail when a test says so."""

from __future__ import annotations

import os

from cometmq.store.disk import Disk


class FailingDisk(Disk):
    """Fails half way into writes, and at flushes, while ``write_error`` or ``flush_error`` is set (an errno)."""

    def __init__(self) -> None:
        self.write_error: int | None = None
        self.flush_error: int | None = None

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if self.write_error is not None:
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise OSError(self.write_error, os.strerror(self.write_error))
        super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        if self.flush_error is not None:
            raise OSError(self.flush_error, os.strerror(self.flush_error))
        super().flush(fd)
