"""The audit log files: the current file, and numbered older files (``audit.log.1`` is the newest of these).

A line is written completely or not at all: the remains of a failed write are removed. If a crash left an incomplete
line, a line feed ends it when the file is next opened.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final


class RotatedFile:
    """A log file that is rotated by size; it is used by one thread and readable only by the process's user.

    :param size: the size in bytes at which a new file is started.
    :param count: the number of files to keep, including the current one.
    """

    def __init__(self, path: Path, size: int, count: int) -> None:
        self.path: Final = path
        self._max_bytes = size
        self._count = count
        self._fd = -1
        self._size = 0
        self._inode = 0

    def open(self) -> None:
        """Open the file, creating it if needed.

        :raises OSError: the file cannot be opened.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                size += os.write(fd, b"\n")
        except OSError:
            os.close(fd)
            raise
        self._fd, self._size, self._inode = fd, size, status.st_ino

    def write(self, lines: list[bytes]) -> int:
        """Append lines and return the number of lines written.

        :raises OSError: no line could be written.
        """
        done = 0
        while done < len(lines):
            try:
                done += self._write_some(lines[done:])
            except OSError:
                if not done:
                    raise
                break
        return done

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_some(self, lines: list[bytes]) -> int:
        """Append as many lines as the file's size limit allows, but at least one."""
        self._follow()
        if self._size and self._size + len(lines[0]) > self._max_bytes:
            self._rotate()
        fitting = [lines[0]]
        total = self._size + len(lines[0])
        for line in lines[1:]:
            total += len(line)
            if total > self._max_bytes:
                break
            fitting.append(line)
        data = memoryview(b"".join(fitting))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += written
        return len(fitting)

    def _follow(self) -> None:
        """Reopen the file if it was moved or deleted."""
        if self._fd >= 0:
            try:
                if self.path.stat().st_ino == self._inode:
                    return
            except FileNotFoundError:
                pass
            self.close()
        self.open()

    def _rotate(self) -> None:
        self.close()
        for number in range(self._count - 1, 0, -1):
            newer = numbered(self.path, number - 1)
            with contextlib.suppress(FileNotFoundError):
                newer.replace(numbered(self.path, number))
        self.open()


def numbered(path: Path, number: int) -> Path:
    """Return the path of the log file with this number; 0 is the current file."""
    return path.with_name(f"{path.name}.{number}") if number else path
