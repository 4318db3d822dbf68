"""Files that list messages that could not be read or masked: one line of JSON per message, with its position and the
reason.

A file's name contains the queue and the offset in its first line, so a repeated task writes the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

from cometmq.spark.records.decode import OnBadBody, refuse_bad_body
from cometmq.spark.records.queues import Queue
from cometmq.storage import Storage, StorageOptions, open_storage

_LINES: Final = 4096
"""Maximum number of lines in a file. Lines are buffered in memory; each takes several hundred bytes."""


class BadMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The position of a bad message and the reason, without the message's content."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    reason: str


class BadMessageFiles:
    """Writes one task's bad messages. Their offsets must rise within a queue."""

    def __init__(self, storage: Storage | None) -> None:
        """Write the files to ``storage``. If it is None, nothing is written."""
        self._storage = storage
        self._queue: Queue | None = None
        self._lines: list[BadMessage] = []

    def add(self, queue: Queue, offset: int, reason: str) -> None:
        """Add one bad message."""
        if self._storage is None:
            return
        if queue != self._queue or len(self._lines) == _LINES:
            self.flush()
            self._queue = queue
        self._lines.append(BadMessage(*queue, offset, reason))

    def flush(self) -> None:
        """Write the messages that were added."""
        if self._lines and self._storage is not None:
            first = self._lines[0]
            name = f"{quote(first.topic, safe='')}-{quote(first.broker_name, safe='')}-{first.queue_id}"
            data = b"".join(msgspec.json.encode(line) + b"\n" for line in self._lines)
            self._storage.put(f"{name}-{first.queue_offset:020d}.jsonl", data)
        self._lines = []


class BadRecordOptions(Protocol):
    """The options of a reader that concern bad records."""

    @property
    def fail_on_bad_body(self) -> bool:
        """The option ``badBodies``."""

    @property
    def bad_records_path(self) -> str | None:
        """The option ``badRecordsPath``."""

    @property
    def storage(self) -> StorageOptions:
        """The options of the object store."""


def open_bad_records(options: BadRecordOptions) -> Storage | None:
    """Return the place for bad records, or None if the option is not set."""
    path = options.bad_records_path
    return None if path is None else open_storage(path, options.storage)


@contextmanager
def bad_bodies(options: BadRecordOptions) -> Iterator[OnBadBody]:
    """Return the handler for bodies that cannot be decompressed, as set by a reader's options.

    :raises BadBodyError: for the first of these bodies, with ``badBodies=fail``.
    """
    if options.fail_on_bad_body:
        yield refuse_bad_body
    else:
        files = BadMessageFiles(open_bad_records(options))
        yield files.add
        files.flush()
