"""DerivedWriter: writes what recovery derives from the log, in blocks: units of queues and entries of the index."""

from __future__ import annotations

from typing import Final

from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreFullError
from cometmq.store.index.index_file import Keys
from cometmq.store.index.index_service import IndexService
from cometmq.store.log.commit_log import store_error
from cometmq.store.log.plain_records import PlainRun
from cometmq.store.log.record_scan import LogRecord
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.recovery.load import Findings

_BLOCK_BYTES: Final = 1 << 16
_INDEX_BLOCK_MESSAGES: Final = 4096
Key = tuple[str, int]


class DerivedWriter:
    """Writes blocks of the data that recovery derives from the log: runs of units for each queue, and index entries.

    If there is no disk space, the data remains in memory, as it does for new messages.
    """

    def __init__(self, disk: Disk, index: IndexService | None, findings: Findings) -> None:
        self._disk = disk
        self._index = index
        self._findings = findings
        self._runs: dict[Key, tuple[ConsumeQueue, int, bytearray]] = {}
        self._full = False
        self.unwritten: dict[Key, tuple[int, bytearray]] = {}
        """First offset and units of each queue that could not be written because the disk was full."""
        self.touched: set[Key] = set()
        """Queues that have received units."""

    def add_units(self, queue: ConsumeQueue, offset: int, units: bytes) -> None:
        """Add ``units`` starting at queue offset ``offset``."""
        self.touched.add(queue.key)
        run = self._runs.get(queue.key)
        if run is not None:
            _, first, before = run
            if first + len(before) // CQ_UNIT_BYTES == offset and len(before) < _BLOCK_BYTES:
                before += units
                return
            self._write_run(*run)
        self._runs[queue.key] = (queue, offset, bytearray(units))

    def add_keys(self, record: LogRecord) -> None:
        """Add the keys of a record to the index."""
        index = self._index
        if index is not None and record.keys:
            index.pending.append((record.topic + "#", record.offset, record.store_timestamp, record.keys))
            if len(index.pending) % _INDEX_BLOCK_MESSAGES == 0:
                self._write_index()

    def add_hashed_keys(self, run: PlainRun) -> None:
        """Add the keys of a run's records to the index."""
        index = self._index
        if index is not None and run.hashes:
            index.add_keys(Keys(run.hashes, run.offsets, run.timestamps), run.indexed)
            if index.hashed_messages >= _INDEX_BLOCK_MESSAGES:
                self._write_index()

    def write(self) -> None:
        """Write all data that was added."""
        runs = list(self._runs.values())
        self._runs.clear()
        for run in runs:
            self._write_run(*run)
        self._write_index()

    def _write_run(self, queue: ConsumeQueue, offset: int, units: bytearray) -> None:
        kept = self.unwritten.get(queue.key)
        if kept is not None and kept[0] + len(kept[1]) // CQ_UNIT_BYTES == offset:
            kept[1].extend(units)
            return
        try:
            queue.write_units(self._disk, offset, bytes(units))
        except OSError as error:
            self._report_full_disk(error)
            self.unwritten[queue.key] = (offset, units)

    def _write_index(self) -> None:
        try:
            if self._index is not None:
                self._index.commit()
                self._index.write_pending()
        except OSError as error:
            self._report_full_disk(error)

    def _report_full_disk(self, error: OSError) -> None:
        if not isinstance(store_error(error, ""), StoreFullError):
            raise error
        if not self._full:
            self._full = True
            self._findings.add("the disk is full; units and index entries remain in memory until there is space")
