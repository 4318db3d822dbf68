"""A store's consume queues, which show the messages that a consumer would receive, and where records begin.

Each unit has 20 bytes: ``int64 log offset, int32 size, int64 tags code``. Files of a local store are mapped; of other
files, blocks are read and kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from cometmq.spark.records.queues import Mark
from cometmq.spark.records.slices import Positions
from cometmq.spark.store.place import LocalStore, QueueKey, StoredRange, StoreFile, StorePlace
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.queue.consume_queue import UNIT_DTYPE
from cometmq.store.recovery.known_topics import DELETED_TOPICS, known_topics
from cometmq.store.recovery.load import Findings

_BLOCK_UNITS: Final = 1024
"""Number of units that are read together: 20 KiB."""
_BLOCKS: Final = 2048
"""Number of blocks that a process keeps, in all queues together."""
_NO_OFFSET: Final = (1 << 63) - 1

Units = npt.NDArray[Any]


class UnitFile(Protocol):
    """The units in one file of a consume queue. Units that were not written yet have size 0."""

    start: int
    """Queue offset of the first unit."""
    count: int

    def at(self, numbers: Positions) -> Units:
        """Return the units with these numbers in the file."""

    def filled(self) -> int:
        """Return the number of units that were written."""

    def first_from(self, log_offset: int) -> int:
        """Return the log offset of the first unit at or after ``log_offset``, which exists."""


class MappedUnits:
    """The units in a local file."""

    def __init__(self, path: Path, file: StoreFile) -> None:
        self.start = file.start // CQ_UNIT_BYTES
        self.count = file.size // CQ_UNIT_BYTES
        self._units = np.memmap(path, UNIT_DTYPE, "r", shape=(self.count,))

    def at(self, numbers: Positions) -> Units:
        """Return units; see :meth:`UnitFile.at`."""
        return self._units[numbers]

    def filled(self) -> int:
        """Count the units."""
        return int(np.count_nonzero(self._units["size"]))

    def first_from(self, log_offset: int) -> int:
        """Search all units; see :meth:`UnitFile.first_from`."""
        offsets = self._units["offset"][: self.filled()]
        return int(offsets[int(np.searchsorted(offsets, log_offset))])


class Blocks:
    """A cache of the most recently read blocks of consume queue units."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], Units] = OrderedDict()

    def read(self, stored: StoredRange, first: int, end: int) -> Units:
        """Return the units ``first <= number < end`` of a file. Missing blocks are read with one request."""
        wanted = range(first // _BLOCK_UNITS, -(-end // _BLOCK_UNITS))
        found = {block: units for block in wanted if (units := self._blocks.get((stored.key, block))) is not None}
        missing = [block for block in wanted if block not in found]
        if missing:
            begin, size = missing[0] * _BLOCK_UNITS, (missing[-1] + 1 - missing[0]) * _BLOCK_UNITS
            content = stored.read(begin * CQ_UNIT_BYTES, (begin + size) * CQ_UNIT_BYTES)
            units = np.frombuffer(content.ljust(size * CQ_UNIT_BYTES, b"\0"), UNIT_DTYPE)
            for number, block in enumerate(range(missing[0], missing[-1] + 1)):
                found[block] = units[number * _BLOCK_UNITS : (number + 1) * _BLOCK_UNITS].copy()
        for block, units in found.items():
            self._blocks[stored.key, block] = units
            self._blocks.move_to_end((stored.key, block))
        while len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        skipped = wanted[0] * _BLOCK_UNITS
        return np.concatenate([found[block] for block in wanted])[first - skipped : end - skipped]


class StoredUnits:
    """The units in a file of an object store, of which only some blocks are read."""

    def __init__(self, stored: StoredRange, file: StoreFile, blocks: Blocks) -> None:
        self.start = file.start // CQ_UNIT_BYTES
        self.count = file.size // CQ_UNIT_BYTES
        self._stored = stored
        self._blocks = blocks
        self._filled = -1

    def at(self, numbers: Positions) -> Units:
        """Read the units from the lowest to the highest number; see :meth:`UnitFile.at`."""
        first = int(numbers.min())
        return self._blocks.read(self._stored, first, int(numbers.max()) + 1)[numbers - first]

    def filled(self) -> int:
        """Search for the first unit that was not written. The units before it were written."""
        if self._filled < 0:
            stored = min(self.count, -(-self._stored.size // CQ_UNIT_BYTES))  # a backup has no zeros at the end
            self._filled = bisect_left(range(stored), True, key=lambda number: not self._unit(number)["size"])
        return self._filled

    def first_from(self, log_offset: int) -> int:
        """Search by halves; see :meth:`UnitFile.first_from`."""
        number = bisect_left(range(self.filled()), log_offset, key=lambda number: int(self._unit(number)["offset"]))
        return int(self._unit(number)["offset"])

    def _unit(self, number: int) -> Any:
        return self._blocks.read(self._stored, number, number + 1)[0]


class QueueUnits:
    """The units in one consume queue, read from all of its files."""

    def __init__(self, files: list[UnitFile]) -> None:
        self._files = files

    def disowned(self, queue_offsets: Positions, log_offsets: Positions) -> npt.NDArray[np.bool_]:
        """Mark records that differ from the queue's records at the same offsets.

        Records at offsets with an empty unit, or after the queue's last offset, are not marked, since the queue may end
        before the log. But if the queue's last record is later in the log, a record belongs to an earlier generation of
        the topic, and is marked.
        """
        _, end = self.bounds()
        last = self.last_record()
        wrong = (queue_offsets >= end) & (log_offsets < (-1 if last is None else last))
        for file in self._files:
            inside = (queue_offsets >= file.start) & (queue_offsets < file.start + file.count)
            if inside.any():
                unit = file.at(queue_offsets[inside] - file.start)
                wrong[inside] |= (unit["size"] != 0) & (unit["offset"] != log_offsets[inside])
        return wrong

    def has_other(self, mark: Mark) -> bool:
        """Return True if the queue's message at a mark's offset differs from the mark."""
        return bool(self.disowned(np.array([mark.offset]), np.array([mark.physical_offset]))[0])

    def bounds(self) -> tuple[int, int]:
        """Return the queue offset of the first message, and the offset after the last message."""
        for file in reversed(self._files):
            if filled := file.filled():
                return self._files[0].start, file.start + filled
        return 0, 0

    def last_record(self) -> int | None:
        """Return the log offset of the queue's last message, or ``None`` if the queue is empty."""
        for file in reversed(self._files):
            if file.filled():
                return _last_record(file)
        return None

    def record_from(self, log_offset: int) -> int | None:
        """Return the log offset of the queue's first message at or after ``log_offset``."""
        number = bisect_left(self._files, log_offset, key=_last_record)
        if number == len(self._files) or not self._files[number].filled():
            return None
        return self._files[number].first_from(log_offset)


def _last_record(file: UnitFile) -> int:
    """Return the log offset of a file's last message; an empty file follows all others."""
    filled = file.filled()
    return int(file.at(np.array([filled - 1]))["offset"][0]) if filled else _NO_OFFSET


class ConsumeQueues:
    """A store's consume queues. A backup that contains only the log has none."""

    def __init__(self, place: StorePlace) -> None:
        self.present = place.has_queues()
        self._place = place
        self._blocks = Blocks()
        self._files: dict[str, dict[int, list[StoreFile]]] = {}
        """The files of each queue, by topic, for the topics that were listed."""
        self._has_all = False
        self._units: dict[QueueKey, QueueUnits | None] = {}
        tables = [name for name in place.small_files("comet/tables") if Path(name).name.startswith(_TABLES)]
        names = ("config/topics.json", f"comet/{DELETED_TOPICS}", f"comet/{DELETED_TOPICS}.bak", *tables)
        with place.at_hand(*names) as root:
            self._topics = known_topics(root, Findings(root))

    def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists. A deleted topic may still have records, but has no queues and no
        configuration.
        """
        return any(self._files_of(topic).values()) or topic in (self._topics.names or ())

    def begin_of(self, topic: str) -> int:
        """Return the log offset below which all of the topic's records belong to earlier generations."""
        return self._topics.begin_of(topic)

    def topics(self) -> set[str]:
        """Return all topics that exist."""
        self._list_all()
        return {topic for topic, queues in self._files.items() if any(queues.values())} | (self._topics.names or set())

    def units(self, topic: str, queue_id: int) -> QueueUnits | None:
        """Return the units of a queue, or ``None`` if the queue has no files."""
        key = (topic, queue_id)
        if key not in self._units:
            files = self._files_of(topic).get(queue_id)
            self._units[key] = None if files is None else QueueUnits([*map(self._unit_file, filter(_has_units, files))])
        return self._units[key]

    def named(self) -> list[QueueKey]:
        """Return the topic and id of every queue, sorted."""
        self._list_all()
        return sorted((topic, queue_id) for topic, queues in self._files.items() for queue_id in queues)

    def largest(self, count: int) -> list[QueueUnits]:
        """Return the ``count`` queues with the largest files."""
        sizes = [
            (sum(file.size for file in self._files[topic][number]), topic, number) for topic, number in self.named()
        ]
        chosen = [self.units(topic, queue_id) for _, topic, queue_id in sorted(sizes, reverse=True)[:count]]
        return [units for units in chosen if units is not None]

    def _list_all(self) -> None:
        if self.present and not self._has_all:
            self._files = {}
            for (topic, queue_id), files in self._place.queue_files().items():
                self._files.setdefault(topic, {})[queue_id] = files
        self._has_all = True

    def _files_of(self, topic: str) -> dict[int, list[StoreFile]]:
        if topic not in self._files and self.present and not self._has_all:
            found = self._place.queue_files(topic)
            self._files[topic] = {queue_id: files for (_, queue_id), files in found.items()}
        return self._files.get(topic, {})

    def _unit_file(self, file: StoreFile) -> UnitFile:
        if isinstance(self._place, LocalStore):
            return MappedUnits(self._place.root / file.name, file)
        stored = self._place.stored(file.name)
        assert stored is not None
        return StoredUnits(stored, file, self._blocks)


_TABLES: Final = ("topics.", Path(DELETED_TOPICS).stem + ".")
"""Beginnings of the names of the journals of the two tables."""


def _has_units(file: StoreFile) -> bool:
    return file.size >= CQ_UNIT_BYTES
