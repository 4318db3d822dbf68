"""Reads runs of records in an existing log with the compiled core (see :mod:`cometmq.store.recovery.recovery`).

Theory of operation. The core *follows* a queue once Python has read one of its records and accepted it. After that, the
queue's next record is *plain* if it has the next queue offset, passes all checks of
:func:`~cometmq.store.log.record_scan.read_log_record`, and gets a unit. Plain records are read in runs. The first
record that is not plain is left to Python, which checks it as if there were no core and then decides whether the core
follows its queue. After damage, the core follows no queue.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cometmq.core import CORE
from cometmq.message.layout import QUEUE_UNIT
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.record_scan import LogRecord

_PLACE: Final = QUEUE_UNIT.struct("offset", "size")
"""Unpacks the log offset and the size from a unit."""
_LEAST_BYTES: Final = 4 << 10
_MOST_BYTES: Final = 1 << 20
"""Minimum and maximum number of bytes that one call of the core scans for consecutive plain records. The number is
multiplied by four after each call that scans to its end.
"""
_MOST_PASSED: Final = 63
"""Number of records that Python reads before it tries the core again. It grows after each attempt that finds no run."""


class PlainUnits(NamedTuple):
    """Units of consecutive records in a queue, the first of which has queue offset ``first``."""

    topic: str
    queue_id: int
    first: int
    units: bytes

    @property
    def end(self) -> int:
        """The queue offset after the last unit."""
        return self.first + len(self.units) // CQ_UNIT_BYTES

    @property
    def last(self) -> tuple[int, int]:
        """Log offset and size of the record to which the last unit points."""
        log_offset, size = _PLACE.unpack_from(self.units, len(self.units) - CQ_UNIT_BYTES)
        return log_offset, size


class PlainRun(NamedTuple):
    """A run of consecutive plain records, with the units and index hashes derived from them."""

    last_offset: int
    last_size: int
    queues: list[PlainUnits]
    hashes: bytes
    """Index hashes of the records' keys, as native int32."""
    offsets: bytes
    """Log offset of each hash's record, as native int64."""
    timestamps: bytes
    """Store timestamp of each hash's record, as native int64."""
    indexed: int
    """The number of records that have keys."""


class PlainRecords:
    """The queues that the core follows while the log is read once.

    :param units_from: the log offset at which records begin to get units.
    :param keys_from: the log offset at which the keys of records begin to be collected.
    """

    def __init__(self, units_from: int, keys_from: int, *, check_crc: bool) -> None:
        self._scan = CORE.LogScan(units_from, keys_from, check_crc) if CORE is not None else None
        self._bytes = _LEAST_BYTES
        self._pass = self._passed = 0
        self.timestamp = 0
        """The last plausible store timestamp in the last run, or 0 if there is none."""
        self.is_stopped = True
        """True if it is known that the record after the last run is not plain."""

    def run(self, view: memoryview, at: int, limit: int, base: int) -> PlainRun | None:
        """Return the run of plain records at byte ``at`` of the log file that starts at offset ``base``, or ``None`` if
        there is none.
        """
        if self._scan is None:
            return None
        if self._passed < self._pass:
            self._passed += 1
            return None
        end = min(limit, at + self._bytes)
        found: tuple[Any, ...] = self._scan.run(view[at:end], base + at)
        size, last_size, self.timestamp, queues, hashes, offsets, timestamps, indexed, self.is_stopped = found
        self._bytes = _LEAST_BYTES if self.is_stopped else min(4 * self._bytes, _MOST_BYTES)
        self._passed = 0
        self._pass = 0 if size else min(2 * self._pass + 1, _MOST_PASSED)
        if not size:
            return None
        units = [PlainUnits(*queue) for queue in queues]
        return PlainRun(base + at + size - last_size, last_size, units, hashes, offsets, timestamps, indexed)

    def follow_queue_of(self, record: LogRecord, *, follow: bool) -> None:
        """Follow the queue of a record that Python has checked, or stop following it."""
        if self._scan is not None:
            self._scan.follow(record.topic, record.queue_id, record.queue_offset + 1 if follow else None)

    def forget(self) -> None:
        """Stop following all queues, because the log is damaged at this point."""
        if self._scan is not None:
            self._scan.forget()
