"""Known files: the queue files as a clean stop left them, in ``comet/queueFiles.json``.

A start looks at the end of every queue. With 100,000 queues that takes long, and nearly always nothing has happened to
their files since they were last looked at. This file has a checksum of what the file system says of each topic's files
(inode, size, time of the last change) and of the extents that these files had. Where it is the same, they are as they
were when they were sound; all others are looked at. Nothing depends on it: it can be missing, torn or damaged.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cometmq.checksum import crc32
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable

_VERSION: Final = 1
_NUMBERS: Final = struct.Struct("<3Q")
_CLOCK_TICK_NS: Final = 20_000_000
"""File systems take the time of a change from a clock that ticks every 1 to 10 ms. What was changed within that time
can be changed once more without a trace."""
_MANY_TOPICS: Final = 256
"""So many topics that were changed a moment ago are worth a wait of that time."""

QueueExtents = Mapping[int, tuple[int, int]]


class _Known(msgspec.Struct, frozen=True):
    log: dict[str, int]
    """The checksum of each file of the log, by its name."""
    log_min: int
    topics: dict[str, tuple[int, dict[int, int]]]
    """The checksum of each topic's files, and the minOffset of queues that begin behind the first unit of a file."""
    version: int = _VERSION
    crc: int = 0
    """The checksum of this file with 0 here."""


class KnownFiles:
    """The files of a store as its last clean stop knew them."""

    def __init__(self, path: Path, root: Path, file_size: int) -> None:
        """:param root: the directory of the queues."""
        self._path = path
        self._root = str(root)
        self._file_size = file_size
        self._known: _Known | None = None

    def load(self, log: CommitLog, *, crashed: bool) -> None:
        """Read the file; it says nothing of a log with other files, or files that were changed.

        :param crashed: the last file of that log may have been written.
        """
        try:
            known = msgspec.json.decode(self._path.read_bytes(), type=_Known)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if known.version != _VERSION or known.crc != _crc_of(known) or known.log_min != log.min_offset:
            return
        last = max(known.log, default="") if crashed else ""
        if all(name == last or _log_file(log, name) == crc for name, crc in known.log.items()):
            self._known = known

    def min_offsets(self, topic: str, extents: QueueExtents) -> Mapping[int, int] | None:
        """The minOffset of each queue of a topic; ``None`` unless its files are those that had these extents."""
        known = self._known.topics.get(topic) if self._known is not None else None
        found = self._checksum(topic, extents) if known is not None else None
        if known is None or found is None or found[0] != known[0]:
            return None
        return {queue_id: known[1].get(queue_id, first) for queue_id, (first, _) in extents.items()}

    def files(self, first: int, end: int) -> list[int]:
        """The first bytes of the files of a queue with this extent."""
        size = self._file_size
        return list(range(first * CQ_UNIT_BYTES // size * size, end * CQ_UNIT_BYTES, size))

    def save(self, log: CommitLog, queues: ConsumeQueueTable) -> None:
        """Write the file, at a clean stop after everything else; a power cut may take it.

        :raises OSError: it could not be written.
        """
        topics: dict[str, tuple[int, dict[int, int]]] = {}
        young: list[str] = []
        oldest_young = time.time_ns() - _CLOCK_TICK_NS
        extents = {topic: of for topic, of in queues.extents().items() if self._is_plain(queues, topic, of)}
        for topic, of in extents.items():
            found = self._checksum(topic, of)
            if found is not None and found[1] < oldest_young:
                topics[topic] = found[0], _inner_min_offsets(queues, topic)
            elif found is not None:
                young.append(topic)
        if len(young) >= _MANY_TOPICS:
            time.sleep(_CLOCK_TICK_NS / 1e9)
            for topic in young:
                found = self._checksum(topic, extents[topic])
                if found is not None:
                    topics[topic] = found[0], _inner_min_offsets(queues, topic)
        known = _Known(
            log={segment.path.name: _log_file(log, segment.path.name) for segment in log.segments},
            log_min=log.min_offset,
            topics=topics,
        )
        fresh = self._path.with_suffix(".tmp")
        fresh.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, crc=_crc_of(known))))
        fresh.replace(self._path)

    def _is_plain(self, queues: ConsumeQueueTable, topic: str, extents: QueueExtents) -> bool:
        """True when the extents of a topic's queues tell their files."""
        of_topic = queues.by_topic[topic]
        return all(of_topic[queue_id].files == self.files(*extent) for queue_id, extent in extents.items())

    def _checksum(self, topic: str, extents: QueueExtents) -> tuple[int, int] | None:
        """The checksum of a topic's extents and files, and the time of their last change (ns); ``None`` without them.

        It is the hash of numbers, which is the same in each process, other than that of texts.
        """
        root = f"{self._root}/{topic}"
        size = self._file_size
        newest = 0
        numbers: list[int] = []
        paths = [root]
        for queue_id, (first, end) in sorted(extents.items()):
            last = (end * CQ_UNIT_BYTES - 1) // size * size
            paths += (f"{root}/{queue_id}", f"{root}/{queue_id}/{last:020d}")
            numbers += (queue_id, first, end)
        try:
            for path in paths:
                stat = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - of 200,000 files at a start
                changed_ns = stat.st_ctime_ns
                newest = max(newest, changed_ns)
                numbers += (stat.st_ino, stat.st_size, changed_ns)
        except OSError:
            return None
        return hash(tuple(numbers)), newest


def _inner_min_offsets(queues: ConsumeQueueTable, topic: str) -> dict[int, int]:
    return {
        queue_id: queue.min_logical
        for queue_id, queue in queues.by_topic[topic].items()
        if queue.committed and queue.min_logical != queue.first_stored
    }


def _log_file(log: CommitLog, name: str) -> int:
    """The checksum of a file of the log; -1 without it. A backup makes a link to it, which is no change."""
    try:
        stat = (log.directory / name).stat()
    except OSError:
        return -1
    return crc32(_NUMBERS.pack(stat.st_ino, stat.st_size, stat.st_mtime_ns))


def _crc_of(known: _Known) -> int:
    return crc32(msgspec.json.encode(msgspec.structs.replace(known, crc=0)))
