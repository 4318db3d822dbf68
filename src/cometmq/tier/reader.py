"""Answers a broker's questions from an archive: records from an offset, and the first record of a time
(``TieredMessageStore``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cometmq.archive import DataFile
from cometmq.clock import SYSTEM_CLOCK
from cometmq.tier.catalog import Catalog, QueueFiles
from cometmq.tier.frames import FindTime, Read, Records, TimeFound
from cometmq.tier.rebuild import RebuiltRecords
from cometmq.tier.row_groups import RowGroups


class _Place(NamedTuple):
    """A record: its offset, its row group, and its number there."""

    offset: int
    file: DataFile
    group: int
    records: RebuiltRecords
    row: int


class ArchiveReader:
    """Reads the archived queues of one broker. Threads may share it."""

    def __init__(self, catalog: Catalog, groups: RowGroups) -> None:
        self._catalog = catalog
        self._groups = groups

    def read(self, asked: Read) -> tuple[Records, memoryview]:
        """Return records of a queue. Offsets without a record are passed over; at the end of the archive, reading
        continues at ``before``.

        :raises ArchiveError: a file is lost or damaged.
        :raises StorageError: the storage does not answer.
        """
        place = self._place_in(asked)
        if place is None:
            return Records(asked.number, 0, asked.before), memoryview(b"")
        offset, file, group, records, row = place
        files = self._catalog.queue(asked.topic, asked.queue_id)
        assert files is not None
        limit = min(asked.before, self._next_of_others(files, file, offset))
        end = min(int(np.searchsorted(records.offsets, limit)), row + asked.max_count)
        fitting = int(np.searchsorted(records.ends, records.ends[row] + asked.max_bytes, "right")) - 1
        end = max(row + 1, min(end, fitting))
        self._read_ahead(files, file, group)
        return Records(asked.number, end - row, int(records.offsets[end - 1]) + 1), records.slice(row, end)

    def find_time(self, asked: FindTime) -> TimeFound:
        """Return the first record stored at a time or later, and the one before it."""
        files = self._catalog.queue(asked.topic, asked.queue_id)
        earlier = (-1, -1)
        for file in [] if files is None else files.files:
            if file.first >= asked.before:
                break
            if file.max_store_ms < asked.timestamp:
                earlier = (file.end - 1, file.max_store_ms)
                continue
            for group in self._groups.footer(file).groups:
                if group.max_ms < asked.timestamp:
                    earlier = (group.last, group.max_ms)
                    continue
                records = self._groups.records(file, group.number)
                late = np.flatnonzero(records.times_ms >= asked.timestamp)
                if len(late):
                    row = int(late[0])
                    if row:
                        earlier = (int(records.offsets[row - 1]), int(records.times_ms[row - 1]))
                    offset = int(records.offsets[row])
                    if offset >= asked.before:
                        break
                    return TimeFound(asked.number, offset, int(records.times_ms[row]), *earlier)
                earlier = (int(records.offsets[-1]), int(records.times_ms[-1]))
        return TimeFound(asked.number, -1, -1, *earlier)

    # --- places -------------------------------------------------------------------------------
    def _place_in(self, asked: Read) -> _Place | None:
        """Return the first record at an offset or after it; look for new commits if there is none."""
        known, began = self._catalog.version, SYSTEM_CLOCK.monotonic()
        place = self._find(asked)
        if place is None:
            self._catalog.refresh(unless_since=began)
            if self._catalog.version != known:  # this call or another thread has read new commits
                place = self._find(asked)
        return place

    def _find(self, asked: Read) -> _Place | None:
        files = self._catalog.queue(asked.topic, asked.queue_id)
        offset: int | None = asked.offset
        while files is not None and offset is not None and offset < asked.before:
            following = files.next_first(offset)
            places = [place for file in files.covering(offset) if (place := self._first_in(file, offset))]
            best = min(places, key=lambda place: place.offset, default=None)
            if best is not None and (following is None or best.offset <= following):
                return best if best.offset < asked.before else None
            offset = following
        return None

    def _first_in(self, file: DataFile, offset: int) -> _Place | None:
        """Return the first record of a file at an offset or after it."""
        for group in self._groups.footer(file).groups:
            if group.last >= offset:
                records = self._groups.records(file, group.number)
                row = int(np.searchsorted(records.offsets, offset))
                if row < len(records):
                    return _Place(int(records.offsets[row]), file, group.number, records, row)
        return None

    def _next_of_others(self, files: QueueFiles, file: DataFile, offset: int) -> int:
        """Return the first offset after ``offset`` that another file has or may have."""
        following = files.next_first(offset)
        places = [self._first_in(other, offset) for other in files.covering(offset) if other is not file]
        found = [place.offset for place in places if place is not None]
        return min(found if following is None else [*found, following], default=files.end)

    def _read_ahead(self, files: QueueFiles, file: DataFile, group: int) -> None:
        """Begin to load the next row group of a queue."""
        if group + 1 < len(self._groups.footer(file).groups):
            self._groups.read_ahead(file, group + 1)
        elif (following := files.next_first(file.first)) is not None:
            for later in files.covering(following):
                self._groups.read_ahead(later, 0)
