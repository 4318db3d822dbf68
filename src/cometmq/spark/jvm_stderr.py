"""What Spark's JVM, and Python workers below it, write to standard error: all of it but what tells a person nothing.

Two things come in every job that is in order: a warning of Java at its start, and for each Python worker that was idle
for a minute, and that Spark therefore ends, a traceback (``daemon.py`` finds that nobody reads its last words).
"""

from __future__ import annotations

import re
from typing import Final

_AT_EVERY_START: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""By every JVM of Spark 4, which asks for that module itself; no option keeps Java from saying it."""
_HEAD: Final = b"Traceback (most recent call last):\n"
_FRAME: Final = re.compile(rb'  File "[^"]*pyspark/daemon\.py", line \d+, in (manager|worker)\n')
_SOURCE: Final = b"    "
"""Begins the lines of source below a frame, which are there where PySpark is no zip."""
_END: Final = b"BrokenPipeError: [Errno 32] Broken pipe\n"
_BEGINNINGS: Final = (_AT_EVERY_START, _HEAD, _END, b'  File "')
_LINE: Final = re.compile(rb"[^\r\n]*[\r\n]")
"""A bar that shows how far a job is ends without a line feed."""


class Sieve:
    """Takes text in pieces of any size, and gives what is to be passed on.

    Tracebacks of several workers may come at the same time, their lines mixed.
    """

    def __init__(self) -> None:
        self._rest = b""
        """Of a line that may still become one of those."""
        self._is_within = False
        """Whether the beginning of the line has been passed on."""
        self._heads = 0
        """Of tracebacks whose first frame has not come."""
        self._frames = 0
        """Last frames of tracebacks whose end has not come."""
        self._is_below = False
        """Whether source of a frame may follow."""

    def passed(self, data: bytes) -> bytes:
        """What is to be passed on now."""
        self._rest += data
        found = b""
        while line := _LINE.match(self._rest):
            self._rest = self._rest[line.end() :]
            found += line[0] if self._is_within else self._line(line[0])
            self._is_within = False
        if self._rest and (self._is_within or not self._may_be_known(self._rest)):
            found += self._held() + self._rest
            self._rest, self._is_within = b"", True
        return found

    def rest(self) -> bytes:
        """What was kept back, when nothing follows."""
        held, self._rest = self._held() + self._rest, b""
        return held

    def _line(self, line: bytes) -> bytes:
        is_below, self._is_below = self._is_below, False
        if line == _HEAD:
            self._heads += 1
        elif frame := _FRAME.fullmatch(line):
            is_last = frame[1] == b"worker"
            self._frames += is_last
            self._heads = max(self._heads - is_last, 0)
            self._is_below = True
        elif line == _END and self._frames:
            self._frames -= 1
        elif is_below and line.startswith(_SOURCE):
            self._is_below = True
        elif line != _AT_EVERY_START:
            return self._held() + line
        return b""

    def _held(self) -> bytes:
        heads, self._heads = self._heads, 0
        return _HEAD * heads

    def _may_be_known(self, text: bytes) -> bool:
        is_source = self._is_below and text.startswith(_SOURCE[: len(text)])
        return is_source or any(text.startswith(known) or known.startswith(text) for known in _BEGINNINGS)
