"""The rebuild job's tasks for one log split: they find the generations of queues, and write or compare units.

The queue offset determines the position of a unit, so tasks write to the same files without conflicts. A queue's
offsets rise along the log, except where a topic was deleted and recreated: only the last generation is rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.ids import tags_code
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.properties import KEYS, TAGS, UNIQ_KEY
from cometmq.spark.errors import StoreReadError
from cometmq.spark.records.decode import Records
from cometmq.spark.store.scan import LogSplit, sound_records
from cometmq.storage import Storage
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.index.index_service import INDEX_BLOCK_MESSAGES, IndexService
from cometmq.store.log.mapped_file import file_name
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, ROLLBACK
from cometmq.store.queue.consume_queue import UNIT_DTYPE
from cometmq.store.recovery.known_topics import KnownTopics

Units = npt.NDArray[Any]
QueueKey = tuple[str, int]
INDEX_BLOCKS: Final = 64
"""Number of index blocks that are written together."""


class Layout(msgspec.Struct, frozen=True):
    """The part of a broker's configuration that determines the layout of the queues and the index."""

    queue_file_bytes: int
    hash_slots: int
    index_entries: int
    delays_ms: tuple[int, ...]


class Seen(msgspec.Struct, frozen=True):
    """The part of a queue that one split contains."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the queue's first message in the split."""
    last: int
    count: int
    begins_at: int
    """Log offset of the queue's first message in the split."""
    restarts_at: int
    """Log offset after which queue offsets only rise; ``begins_at`` if they rise in the entire split."""
    restarts_with: int
    """Queue offset of the message at that log offset."""


class Compared(msgspec.Struct, frozen=True):
    """The result of comparing a queue's units in one split with its units in the files."""

    topic: str
    queue_id: int
    units: int
    differ: int


def by_queue(records: Records, known: KnownTopics) -> Iterator[tuple[QueueKey, Records]]:
    """Yield each queue's records, except those from deleted topics and earlier generations."""
    placed = records.rows((records.sys_flags & NO_QUEUE_OFFSET) == 0)
    for topic, queue_id, part in placed.by_queue():
        if topic in known:
            live = part.rows(part.physical_offsets >= known.begin_of(topic))
            if len(live):
                yield (topic, queue_id), live


def generations(split: LogSplit, known: KnownTopics, bad_records: Storage | None) -> list[Seen]:
    """Return each queue's extent in a split, and the offset at which a new generation begins."""
    found: dict[QueueKey, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]] = {}
    for records in sound_records(split, bad_records):
        for key, part in by_queue(records, known):
            found.setdefault(key, []).append((part.queue_offsets, part.physical_offsets))
    seen = []
    for (topic, queue_id), parts in found.items():
        offsets = np.concatenate([part[0] for part in parts])
        at = np.concatenate([part[1] for part in parts])
        drops = np.flatnonzero(np.diff(offsets) <= 0)
        restart = int(drops[-1]) + 1 if len(drops) else 0
        first, last, count = int(offsets[0]), int(offsets[-1]), len(offsets)
        seen.append(Seen(topic, queue_id, first, last, count, int(at[0]), int(at[restart]), int(offsets[restart])))
    return seen


def write_units(
    split: LogSplit, root: Path, layout: Layout, live_from: Mapping[QueueKey, int], bad_records: Storage | None
) -> None:
    """Write a split's units to the queue files below ``root``, and flush them."""
    for (topic, queue_id), units, offsets in _units(split, layout, live_from, bad_records):
        directory = root / topic / str(queue_id)
        directory.mkdir(parents=True, exist_ok=True)
        for path, at, part in _runs(directory, units, offsets, layout.queue_file_bytes):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, layout.queue_file_bytes)
                Disk().write(fd, part.tobytes(), at)
                os.fsync(fd)
            finally:
                os.close(fd)


def compare_units(
    split: LogSplit, root: Path, layout: Layout, live_from: Mapping[QueueKey, int], bad_records: Storage | None
) -> list[Compared]:
    """Compare a split's units with the units in the files below ``root``."""
    found: dict[QueueKey, Compared] = {}
    for key, units, offsets in _units(split, layout, live_from, bad_records):
        differ = 0
        for path, at, part in _runs(root / key[0] / str(key[1]), units, offsets, layout.queue_file_bytes):
            there = _read(path, at, len(part) * CQ_UNIT_BYTES)
            same = np.frombuffer(there, UNIT_DTYPE) == part[: len(there) // CQ_UNIT_BYTES]
            differ += len(part) - int(np.count_nonzero(same))
        before = found.get(key, Compared(*key, 0, 0))
        found[key] = Compared(*key, before.units + len(units), before.differ + differ)
    return list(found.values())


def write_index(parts: list[LogSplit], directory: Path, layout: Layout, bad_records: Storage | None) -> int:
    """Write the index of the entire log to ``directory``. Return the number of messages that have entries."""
    index = IndexService(directory, layout.hash_slots, layout.index_entries, Disk(), SYSTEM_CLOCK)
    messages = 0
    try:
        for split in parts:
            for records in sound_records(split, bad_records):
                messages += _index(index, records)
        index.commit()
        index.write_pending()
        for file in index.files:
            file.flush()
    finally:
        index.close()
    return messages


def _index(index: IndexService, records: Records) -> int:
    indexed = records.rows((records.sys_flags & ROLLBACK) != ROLLBACK)
    if not len(indexed):
        return 0
    before = len(index.pending)
    columns = zip(
        indexed.topics().to_pylist(),
        indexed.physical_offsets.tolist(),
        indexed.store_timestamps.tolist(),
        indexed.properties.values_of(UNIQ_KEY).to_pylist(),
        indexed.properties.values_of(KEYS).to_pylist(),
        strict=True,
    )
    for topic, at, timestamp, unique, text in columns:
        keys = [key for key in (unique, *(text or "").split(" ")) if key]
        if keys:
            index.pending.append((f"{topic}#", at, timestamp, keys))
    added = len(index.pending) - before
    if len(index.pending) >= INDEX_BLOCK_MESSAGES * INDEX_BLOCKS:
        index.commit()
        index.write_pending()
    return added


def fill_blank(root: Path, topic: str, queue_id: int, first: int, blank: bytes, file_bytes: int) -> None:
    """Like brokers, write blank units before a queue's first unit if the queue does not begin at offset 0."""
    byte = first * CQ_UNIT_BYTES
    start = byte - byte % file_bytes
    if byte > start:
        fd = os.open(root / topic / str(queue_id) / file_name(start), os.O_WRONLY | os.O_CLOEXEC)
        try:
            Disk().write(fd, blank * ((byte - start) // CQ_UNIT_BYTES), 0)
            os.fsync(fd)
        finally:
            os.close(fd)


def _units(
    split: LogSplit, layout: Layout, live_from: Mapping[QueueKey, int], bad_records: Storage | None
) -> Iterator[tuple[QueueKey, Units, npt.NDArray[np.int64]]]:
    for records in sound_records(split, bad_records):
        for key, part in by_queue(records, KnownTopics()):
            if key not in live_from:
                continue
            live = part.rows(part.physical_offsets >= live_from[key])
            if len(live):
                yield key, units_of(live, key, layout), live.queue_offsets


def units_of(records: Records, key: QueueKey, layout: Layout) -> Units:
    """Return the units for some messages in one queue."""
    topic, queue_id = key
    units = np.empty(len(records), UNIT_DTYPE)
    units["offset"] = records.physical_offsets
    units["size"] = records.sizes
    if topic == SCHEDULE_TOPIC and queue_id < len(layout.delays_ms):
        units["tags"] = records.store_timestamps + layout.delays_ms[queue_id]
        return units
    tags = records.properties.values_of(TAGS).dictionary_encode()
    codes = np.array([*(tags_code(tag) for tag in tags.dictionary.to_pylist()), 0], np.int64)
    units["tags"] = codes[tags.indices.fill_null(len(codes) - 1).to_numpy()]
    return units


def _runs(
    directory: Path, units: Units, offsets: npt.NDArray[np.int64], file_bytes: int
) -> Iterator[tuple[Path, int, Units]]:
    """Split units into runs without gaps, each within one file. Yield each run's path, position and units."""
    per_file = file_bytes // CQ_UNIT_BYTES
    breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(offsets // per_file) != 0)) + 1
    edges = [0, *breaks.tolist(), len(offsets)]
    for begin, end in pairwise(edges):
        byte = int(offsets[begin]) * CQ_UNIT_BYTES
        start = byte - byte % file_bytes
        yield directory / file_name(start), byte - start, units[begin:end]


def _read(path: Path, at: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            data = file.read(size)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreReadError(f"cannot read {path}: {error.strerror}") from error
    return data[: len(data) - len(data) % CQ_UNIT_BYTES]
