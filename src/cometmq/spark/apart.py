"""Messages that could not be taken as they are, told apart from all others: a line of JSON for each, and why.

A file is named by the queue and the offset of its first line, so that a task that is repeated writes the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from cometmq.durable import replace_file
from cometmq.spark.decode import OnBadBody, refuse_bad_body
from cometmq.spark.queues import Queue

_LINES: Final = 4096
"""Of one file, and so what is held in memory: some hundred bytes each."""


class Apart(msgspec.Struct, frozen=True, rename="camel"):
    """Where a message stands and why it is told; nothing of what is in it."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    reason: str


class ApartFiles:
    """The messages of one task; their offsets rise as long as they are of one queue."""

    def __init__(self, directory: Path | None) -> None:
        """Without a directory nothing is written."""
        self._directory = directory
        self._queue: Queue | None = None
        self._lines: list[Apart] = []

    def add(self, queue: Queue, offset: int, reason: str) -> None:
        """Tell of one message."""
        if self._directory is None:
            return
        if queue != self._queue or len(self._lines) == _LINES:
            self.flush()
            self._queue = queue
        self._lines.append(Apart(*queue, offset, reason))

    def flush(self) -> None:
        """Write what was told."""
        if self._lines and self._directory is not None:
            first = self._lines[0]
            name = f"{quote(first.topic, safe='')}-{quote(first.broker_name, safe='')}-{first.queue_id}"
            data = b"".join(msgspec.json.encode(line) + b"\n" for line in self._lines)
            replace_file(self._directory / f"{name}-{first.queue_offset:020d}.jsonl", data)
        self._lines = []


@contextmanager
def bad_bodies(*, fail: bool, directory: str | None) -> Iterator[OnBadBody]:
    """What becomes of bodies that cannot be unpacked: the options ``badBodies`` and ``badRecordsPath``.

    :raises BadBodyError: with ``fail``, at the first of them.
    """
    if fail:
        yield refuse_bad_body
    else:
        files = ApartFiles(None if directory is None else Path(directory))
        yield files.add
        files.flush()
