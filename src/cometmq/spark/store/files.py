"""Reads a store's files without a running broker, for example from a backup or a dead broker's disk. The files are
never changed.

A log file or consume queue file is named after the offset of its first byte. Each unit in a consume queue has 20 bytes:
``int64 log offset, int32 size, int64 tags code``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.message.layout import RECORD
from cometmq.message.record import decode_record
from cometmq.paths import local_path
from cometmq.spark.errors import NoStoreError, StoreReadError
from cometmq.spark.records.queues import Mark
from cometmq.spark.records.slices import Positions
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.mapped_file import first_data
from cometmq.store.queue.consume_queue import UNIT_DTYPE
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings, offset_of_name

_SIZE: Final = RECORD.struct("size")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file, which contains the bytes ``start <= log offset < end``."""

    path: str
    start: int
    end: int
    last: bool
    """True if the log may end within this file."""


def log_files(directory: str | Path) -> list[LogFile]:
    """List the log's files in a store's directory, or in the directory ``commitlog`` itself.

    Empty files after the log's end, which a broker creates in advance, are left out.

    :raises NoStoreError: no log files exist.
    :raises StoreReadError: the directory cannot be read.
    """
    root = local_path(directory)
    log = root / "commitlog" if (root / "commitlog").is_dir() else root
    try:
        found = sorted((start, entry) for entry in log.iterdir() if (start := offset_of_name(entry.name)) is not None)
        while len(found) > 1 and _is_reserved(found[-1][1]):
            found.pop()
    except OSError as error:
        raise StoreReadError(
            f"cannot read the store {root}: {error.strerror}",
            next_step="check that the directory is the same on all executors",
        ) from error
    if not found:
        raise NoStoreError(
            f"{log} has no log files",
            next_step="use the directory that contains commitlog/, whose files have names of 20 digits",
        )
    return [
        LogFile(str(path), start, start + path.stat().st_size, last=path == found[-1][1])
        for start, path in found
        if path.stat().st_size
    ]


def _is_reserved(path: Path) -> bool:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return first_data(file.fileno(), 0, size) >= size


class QueueUnits:
    """The units in one consume queue, read from all of its files."""

    def __init__(self, directory: Path) -> None:
        self._starts: list[int] = []
        self._units: list[npt.NDArray[Any]] = []
        for start, path in sorted(
            (start, path) for path in directory.iterdir() if (start := offset_of_name(path.name)) is not None
        ):
            count = path.stat().st_size // CQ_UNIT_BYTES
            if count:
                self._starts.append(start // CQ_UNIT_BYTES)
                self._units.append(np.memmap(path, UNIT_DTYPE, "r", shape=(count,)))

    def disowned(self, queue_offsets: Positions, log_offsets: Positions) -> npt.NDArray[np.bool_]:
        """Mark records that differ from the queue's records at the same offsets.

        Records at offsets with an empty unit, or after the queue's last offset, are not marked, since the queue may end
        before the log. But if the queue's last record is later in the log, a record belongs to an earlier generation of
        the topic, and is marked.
        """
        _, end = self.bounds()
        last = self.last_record()
        wrong = (queue_offsets >= end) & (log_offsets < (-1 if last is None else last))
        for start, units in zip(self._starts, self._units, strict=True):
            inside = (queue_offsets >= start) & (queue_offsets < start + len(units))
            if inside.any():
                unit = units[queue_offsets[inside] - start]
                wrong[inside] |= (unit["size"] != 0) & (unit["offset"] != log_offsets[inside])
        return wrong

    def has_other(self, mark: Mark) -> bool:
        """Return True if the queue's message at a mark's offset differs from the mark."""
        return bool(self.disowned(np.array([mark.offset]), np.array([mark.physical_offset]))[0])

    def bounds(self) -> tuple[int, int]:
        """Return the queue offset of the first message, and the offset after the last message."""
        for start, units in reversed(list(zip(self._starts, self._units, strict=True))):
            filled = int(np.count_nonzero(units["size"]))
            if filled:
                return self._starts[0], start + filled
        return 0, 0

    def last_record(self) -> int | None:
        """Return the log offset of the queue's last message, or ``None`` if the queue is empty."""
        for units in reversed(self._units):
            filled = int(np.count_nonzero(units["size"]))
            if filled:
                return int(units["offset"][filled - 1])
        return None

    def record_from(self, log_offset: int) -> int | None:
        """Return the log offset of the queue's first message at or after ``log_offset``."""
        for units in self._units:
            filled = int(np.count_nonzero(units["size"]))
            if filled and units["offset"][filled - 1] >= log_offset:
                return int(units["offset"][int(np.searchsorted(units["offset"][:filled], log_offset))])
        return None


class ConsumeQueues:
    """A store's consume queues. A backup that contains only the log has none."""

    def __init__(self, directory: str | Path) -> None:
        directory = local_path(directory)
        self._root = directory / "consumequeue"
        self.present = self._root.is_dir()
        self._topics = known_topics(directory, Findings(directory))
        self._known: dict[tuple[str, int], QueueUnits | None] = {}

    def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists. A deleted topic may still have records, but has no queues and no
        configuration.
        """
        return any((self._root / topic).glob("*/*")) or topic in (self._topics.names or ())

    def begin_of(self, topic: str) -> int:
        """Return the log offset below which all of the topic's records belong to earlier generations."""
        return self._topics.begin_of(topic)

    def topics(self) -> set[str]:
        """Return all topics that exist."""
        found = {topic.name for topic in self._root.iterdir() if self.has_topic(topic.name)} if self.present else set()
        return found | (self._topics.names or set())

    def units(self, topic: str, queue_id: int) -> QueueUnits | None:
        """Return the units of a queue, or ``None`` if the queue has no files."""
        key = (topic, queue_id)
        if key not in self._known:
            directory = self._root / topic / str(queue_id)
            self._known[key] = QueueUnits(directory) if directory.is_dir() else None
        return self._known[key]

    def named(self) -> list[tuple[str, int]]:
        """Return the topic and id of every queue, sorted."""
        if not self.present:
            return []
        return sorted(
            (topic.name, int(queue.name))
            for topic in self._root.iterdir()
            if topic.is_dir()
            for queue in topic.iterdir()
            if queue.is_dir() and queue.name.isdecimal()
        )

    def largest(self, count: int) -> list[QueueUnits]:
        """Return the ``count`` queues with the largest files."""
        sizes = [
            (sum(file.stat().st_size for file in (self._root / topic / str(queue_id)).iterdir()), topic, queue_id)
            for topic, queue_id in self.named()
        ]
        chosen = [self.units(topic, queue_id) for _, topic, queue_id in sorted(sizes, reverse=True)[:count]]
        return [units for units in chosen if units is not None]


def newest_store_time(directory: str | Path) -> int | None:
    """Return the store time in ms of the last message in any consume queue, or ``None`` if the store is empty."""
    queues = ConsumeQueues(directory)
    known = (queues.units(topic, queue_id) for topic, queue_id in queues.named())
    newest = max((at for units in known if units is not None and (at := units.last_record()) is not None), default=None)
    for file in log_files(directory):
        if newest is not None and file.start <= newest < file.end:
            with Path(file.path).open("rb") as log:
                log.seek(newest - file.start)
                (size,) = _SIZE.unpack(log.read(_SIZE.size))
                log.seek(newest - file.start)
                return decode_record(log.read(size), check_crc=False).store_timestamp
    return None


def boundaries(file: LogFile, parts: int, queues: list[QueueUnits]) -> list[int]:
    """Cut a log file into about ``parts`` parts that each begin with a record. Return the ends of the parts; the last
    end is the end of the file.

    Only consume queues show where records begin without scanning all earlier records. If there are no queues, or units
    are wrong, there are fewer parts.
    """
    cuts: list[int] = []
    with Path(file.path).open("rb") as log:
        for number in range(1, parts):
            wanted = file.start + (file.end - file.start) * number // parts
            candidates = sorted(at for units in queues if (at := units.record_from(wanted)) is not None)
            cut = next((at for at in candidates if _begins_record(log, file, at)), None)
            if cut is not None and bisect_right(cuts, cut) == len(cuts) and cut not in cuts:
                cuts.append(cut)
    return [*cuts, file.end]


def _begins_record(log: Any, file: LogFile, offset: int) -> bool:
    if not file.start < offset < file.end:
        return False
    log.seek(offset - file.start + 28)
    return bool(log.read(8) == offset.to_bytes(8, "big"))
