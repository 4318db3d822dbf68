"""Finds archived records by log offset (message id) and by key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.archive import ArchiveError, DataFile
from cometmq.archive.files import HOUR_MS
from cometmq.clock import SYSTEM_CLOCK
from cometmq.tier.catalog import Catalog
from cometmq.tier.footers import RowGroup
from cometmq.tier.frames import FindKey, FindPosition, Records
from cometmq.tier.limits import FOUND_BYTES_MAX, LOOKUP_SECONDS
from cometmq.tier.row_groups import RowGroups

_KEY_COLUMNS: Final = ("queueOffset", "storeTimestamp", "keys", "uniqKey")
_POSITION: Final = ("physicalOffset",)


class _Hit(NamedTuple):
    """A record that was found, ordered by its store time."""

    time_ms: int
    queue_id: int
    offset: int
    record: bytes | memoryview


class Lookups:
    """Finds single records of one broker's archived queues. Threads may share it."""

    def __init__(self, catalog: Catalog, groups: RowGroups) -> None:
        self._catalog = catalog
        self._groups = groups

    def find_position(self, asked: FindPosition) -> tuple[Records, bytes]:
        """Return the record at a log offset, if it is archived.

        Log offsets rise with the time, so one file for each hour is probed to find the hours that may have the record.

        :raises ArchiveError: a file is lost or damaged.
        :raises StorageError: the storage does not answer.
        """
        until = SYSTEM_CLOCK.monotonic() + LOOKUP_SECONDS
        hours: dict[int, list[DataFile]] = {}
        for file in self._catalog.all_files():
            hours.setdefault(file.min_store_ms // HOUR_MS, []).append(file)
        ordered = sorted(hours)
        at = bisect_right(ordered, asked.position, key=lambda hour: self._first_position(hours[hour][0]))
        # the hour whose probe begins before the offset, or the next one, in which another queue may begin earlier
        for hour in ordered[max(at - 1, 0) : at + 1]:
            for file in hours[hour]:
                if SYSTEM_CLOCK.monotonic() > until:
                    raise ArchiveError(
                        f"the record at {asked.position} was not found within {LOOKUP_SECONDS:.0f} s",
                        next_step="find the message by its key, or with the archive's table",
                    )
                for group in self._groups.footer(file).groups:
                    if not _may_have(group, asked.position):
                        continue
                    positions = self._positions(file, group)
                    row = int(np.searchsorted(positions, asked.position))
                    if row < len(positions) and positions[row] == asked.position:
                        records = self._groups.records(file, group.number)
                        return Records(asked.number, 1, int(records.offsets[row]) + 1), bytes(
                            records.slice(row, row + 1)
                        )
        return Records(asked.number, 0, 0), b""

    def _first_position(self, file: DataFile) -> int:
        group = self._groups.footer(file).groups[0]
        return group.positions[0] if group.positions else int(self._positions(file, group)[0])

    def _positions(self, file: DataFile, group: RowGroup) -> Any:
        return self._groups.table(file, group.number, _POSITION).column(0).to_numpy()

    def find_key(self, asked: FindKey) -> tuple[Records, bytes]:
        """Return the newest records with a key, oldest first. After some seconds the search ends with those found.

        :raises ArchiveError: a file is lost or damaged.
        :raises StorageError: the storage does not answer.
        """
        until = SYSTEM_CLOCK.monotonic() + LOOKUP_SECONDS
        hits: list[_Hit] = []
        for file, group in self._groups_in_time(asked):
            is_enough = len(hits) >= asked.max_count or _size_of(hits) >= FOUND_BYTES_MAX
            if (is_enough and hits[-1].time_ms > group.max_ms) or SYSTEM_CLOCK.monotonic() > until:
                break
            hits = _newest([*hits, *self._hits(asked, file, group)], asked.max_count)
        newest = hits[::-1]
        return Records(asked.number, len(newest), 0), b"".join(hit.record for hit in newest)

    def _groups_in_time(self, asked: FindKey) -> Iterator[tuple[DataFile, RowGroup]]:
        """Yield the row groups that may have messages of the time range, newest first."""
        files = [
            file
            for queue_id, queue in self._catalog.queues_of(asked.topic).items()
            for file in queue.files
            if file.first < asked.before.get(queue_id, 0)
            and file.max_store_ms >= asked.begin
            and file.min_store_ms <= asked.end
        ]
        for file in sorted(files, key=lambda file: file.max_store_ms, reverse=True):
            for group in reversed(self._groups.footer(file).groups):
                if group.max_ms >= asked.begin and group.min_ms <= asked.end:
                    yield file, group

    def _hits(self, asked: FindKey, file: DataFile, group: RowGroup) -> Iterator[_Hit]:
        if asked.is_unique and group.unique_keys:
            smallest, largest = group.unique_keys
            if not smallest <= asked.key.encode() <= largest:
                return
        table = self._groups.table(file, group.number, _KEY_COLUMNS)
        found = pc.equal(table.column("uniqKey"), asked.key)
        if not asked.is_unique:
            found = pc.or_kleene(found, pc.match_substring(table.column("keys"), asked.key))
        rows = np.flatnonzero(pc.fill_null(found, False).to_numpy())
        if not len(rows):
            return
        keys, unique_keys = (table.column(name).take(pa.array(rows)).to_pylist() for name in ("keys", "uniqKey"))
        records = self._groups.records(file, group.number)
        before = asked.before.get(file.queue_id, 0)
        matching: list[tuple[int, int, int]] = []
        for row, texts, unique_key in zip(rows.tolist(), keys, unique_keys, strict=True):
            offset, time_ms = int(records.offsets[row]), int(records.times_ms[row])
            has_key = unique_key == asked.key or (not asked.is_unique and asked.key in (texts or "").split(" "))
            if has_key and offset < before and asked.begin <= time_ms <= asked.end:
                matching.append((time_ms, offset, row))
        for time_ms, offset, row in sorted(matching, reverse=True)[: asked.max_count]:
            yield _Hit(time_ms, file.queue_id, offset, records.slice(row, row + 1))


def _newest(hits: list[_Hit], most: int) -> list[_Hit]:
    """Return the newest hits, the newest first, that fit into an answer."""
    hits.sort(key=lambda hit: hit[:3], reverse=True)
    sizes = accumulate(len(hit.record) for hit in hits[:most])
    return [
        hit._replace(record=bytes(hit.record))
        for number, (hit, size) in enumerate(zip(hits, sizes, strict=False))
        if not number or size <= FOUND_BYTES_MAX
    ]


def _size_of(hits: list[_Hit]) -> int:
    return sum(len(hit.record) for hit in hits)


def _may_have(group: RowGroup, position: int) -> bool:
    return group.positions is None or group.positions[0] <= position <= group.positions[1]
