"""Reads an audit log: first the existing entries, then new entries as they are written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

from cometmq.auth.audit.entry import Entry
from cometmq.auth.audit.files import numbered
from cometmq.auth.limits import MAX_AUDIT_ENTRY_CHARS
from cometmq.errors import CometMQError, reason_of

_LOOK_SECONDS: Final = 0.25
_MAX_FILES: Final = 1_000
_LINE_BYTES: Final = 4 * MAX_AUDIT_ENTRY_CHARS
"""Maximum length of a line with an entry; longer lines are ignored."""
_PIECE_BYTES: Final = 65_536


class AuditReadError(CometMQError):
    """An audit log cannot be read."""


class AuditReader:
    """Reads an audit log: first the existing entries, then new ones."""

    def __init__(self, path: Path, on_damage: Callable[[Path, int], None]) -> None:
        """Create a reader; no file is opened yet.

        :param on_damage: called with a file and the number of its unreadable lines.
        """
        self._path = path
        self._on_damage = on_damage
        self._file: IO[bytes] | None = None
        self._file_path = path
        self._rest = b""
        """The start of the last line, if the line is incomplete."""

    def read(self) -> Iterator[Entry]:
        """Yield the entries of all files, oldest first.

        :raises AuditReadError: no file exists, or a file cannot be read.
        """
        files = [file for file in (numbered(self._path, at) for at in range(_MAX_FILES, -1, -1)) if file.exists()]
        if not files:
            raise AuditReadError(
                f"the audit log {self._path} does not exist",
                next_step="set auditLogEnable=true, or specify another file",
            )
        for path in files:
            self._open(path)
            yield from self._read_on()

    def follow(self, *, is_over: Callable[[], bool] = lambda: False) -> Iterator[Entry]:
        """Yield entries written after those from :meth:`read`, across rotated files, until ``is_over`` returns True.

        :raises AuditReadError: the file cannot be read.
        """
        while True:
            # First check for a new file, so that the last lines of the old one are still read.
            is_old = self._file is None or _is_replaced(self._path, self._file)
            yield from self._read_on()
            if is_old:
                self._open(self._path)
            elif is_over():
                return
            else:
                time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Close the file."""
        if self._rest.strip():
            self._on_damage(self._file_path, 1)
        self._rest = b""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        """Close the file at the end of the ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path) -> None:
        self.close()
        try:
            self._file, self._file_path = path.open("rb"), path
        except OSError as error:
            raise AuditReadError(f"{path} cannot be read: {reason_of(error)}") from None

    def _read_on(self) -> Iterator[Entry]:
        damaged = 0
        while self._file is not None and (piece := self._file.read(_PIECE_BYTES)):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > _LINE_BYTES:
                self._rest = self._rest[:_LINE_BYTES]
            for line in lines:
                entry = parse(line)
                if entry is not None:
                    yield entry
                elif line.strip():
                    damaged += 1
        if damaged:
            self._on_damage(self._file_path, damaged)


def read_entries(path: Path, on_damage: Callable[[Path, int], None]) -> Iterator[Entry]:
    """Yield the entries in all files of an audit log."""
    with AuditReader(path, on_damage) as reader:
        yield from reader.read()


def parse(line: bytes) -> Entry | None:
    """Parse an entry; return ``None`` if the line is not an entry."""
    try:
        entry: Any = json.loads(line) if len(line) <= _LINE_BYTES else None
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("time"), str) else None


def _is_replaced(path: Path, file: IO[bytes]) -> bool:
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
