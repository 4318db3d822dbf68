"""DerivedWriter: units and index entries that recovery derives from the log, written in blocks.

Without room for them on the disk they wait in memory, as those of new messages do.
"""

from __future__ import annotations

from typing import Final

from cometmq.store.commit_log import store_error
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreFullError
from cometmq.store.index_service import IndexService
from cometmq.store.load import Findings
from cometmq.store.record_scan import LogRecord
from cometmq.store.topic_queue import TopicQueue

_BLOCK_BYTES: Final = 1 << 16
_INDEX_BLOCK_MESSAGES: Final = 4096
Key = tuple[str, int]


class DerivedWriter:
    """What is derived and not yet written: a run of units for each queue, and index entries."""

    def __init__(self, disk: Disk, index: IndexService | None, findings: Findings) -> None:
        self._disk = disk
        self._index = index
        self._findings = findings
        self._runs: dict[Key, tuple[TopicQueue, int, bytearray]] = {}
        self._full = False
        self.unwritten: dict[Key, tuple[int, bytearray]] = {}
        """First offset and units of queues for which the disk had no room."""

    def add_unit(self, queue: TopicQueue, offset: int, unit: bytes) -> None:
        """Let ``unit`` be the one at ``offset``."""
        run = self._runs.get(queue.key)
        if run is not None:
            _, first, units = run
            if first + len(units) // CQ_UNIT_BYTES == offset and len(units) < _BLOCK_BYTES:
                units += unit
                return
            self._write_run(*run)
        self._runs[queue.key] = (queue, offset, bytearray(unit))

    def add_keys(self, record: LogRecord) -> None:
        """Let the index find the record by its keys."""
        index = self._index
        if index is not None and record.keys:
            index.pending.append((record.topic + "#", record.offset, record.store_timestamp, record.keys))
            if len(index.pending) % _INDEX_BLOCK_MESSAGES == 0:
                self._write_index()

    def write(self) -> None:
        """Write everything that was added."""
        runs = list(self._runs.values())
        self._runs.clear()
        for run in runs:
            self._write_run(*run)
        self._write_index()

    def _write_run(self, queue: TopicQueue, offset: int, units: bytearray) -> None:
        kept = self.unwritten.get(queue.key)
        if kept is not None and kept[0] + len(kept[1]) // CQ_UNIT_BYTES == offset:
            kept[1].extend(units)
            return
        try:
            queue.write_units(self._disk, offset, bytes(units))
        except OSError as error:
            self._no_room(error)
            self.unwritten[queue.key] = (offset, units)

    def _write_index(self) -> None:
        try:
            if self._index is not None:
                self._index.commit()
                self._index.write_pending()
        except OSError as error:
            self._no_room(error)

    def _no_room(self, error: OSError) -> None:
        if not isinstance(store_error(error, ""), StoreFullError):
            raise error
        if not self._full:
            self._full = True
            self._findings.add("the disk is full; units and index entries wait in memory until it has room")
