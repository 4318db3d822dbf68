"""Disks that fail when a test says so."""

from __future__ import annotations

import os
import threading

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


class HeldDisk(FailingDisk):
    """Its flushes wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self._goes_on = threading.Event()
        self.flushes = 0
        self.go_on()

    def hold(self) -> None:
        """Let flushes that begin from now on wait."""
        self._goes_on = threading.Event()

    def go_on(self) -> None:
        """Let the flushes that wait, and all that follow, go on."""
        self._goes_on.set()

    def hold_next(self) -> None:
        """Let the flush that waits go on, and those that follow wait."""
        waiting, self._goes_on = self._goes_on, threading.Event()
        waiting.set()

    def flush(self, fd: int) -> None:
        goes_on = self._goes_on
        self.flushes += 1
        assert goes_on.wait(60)
        super().flush(fd)
