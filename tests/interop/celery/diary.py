"""A file in which the processes of a proof note what happens to tasks; a killed process loses no note.

Each note is one append of :data:`_NOTE` bytes, so notes of many processes do not mix.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

_NOTE: Final = struct.Struct("<IIId")


class Kind(IntEnum):
    """What happened."""

    SENDS = 1
    """A producer is about to send the task."""
    SENT = 2
    """The broker has acknowledged the task, or the producer has been told so."""
    BEGIN = 3
    END = 4
    READY = 5
    """A worker consumes; the number is 0."""


@dataclass(frozen=True)
class Note:
    """One line of the diary."""

    kind: Kind
    number: int
    """Of the task."""
    pid: int
    at: float
    """Seconds since 1970, of this machine."""


class Diary:
    """Appends notes to a file, and reads those of all processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._read = 0
        self._notes: list[Note] = []

    def note(self, kind: Kind, number: int = 0) -> None:
        """Append one note of this process."""
        pid = os.getpid()
        if self._file is None or self._file[0] != pid:
            self._file = pid, os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._file[1], _NOTE.pack(kind, number, pid, time.time()))

    def count(self) -> int:
        """The number of notes so far, without reading them."""
        return self.path.stat().st_size // _NOTE.size if self.path.exists() else 0

    def notes(self) -> list[Note]:
        """All notes so far, in the order in which they were written."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = len(data) - len(data) % _NOTE.size
            self._read += whole
            self._notes += [Note(Kind(kind), *rest) for kind, *rest in _NOTE.iter_unpack(data[:whole])]
        return self._notes

    def of(self, kind: Kind) -> list[Note]:
        """The notes of one kind."""
        return [note for note in self.notes() if note.kind is kind]

    def numbers(self, kind: Kind) -> list[int]:
        """The tasks of the notes of one kind."""
        return [note.number for note in self.of(kind)]
