"""Records of a log that is read again, many at once by the compiled core (see :mod:`cometmq.store.recovery.recovery`).

Theory of operation. A queue is *followed* once Python has read one of its records and given it its place: then the next
record of the queue is *plain* if it has the next queue offset, is sound by all that
:func:`~cometmq.store.log.record_scan.read_log_record` looks at, and has a unit. Plain records are taken in runs. The
first other record is left to Python, which reads and judges it as if there were no core, and then lets the core follow
its queue, or not. Damage ends the following of all queues.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cometmq.core import CORE
from cometmq.message.layout import QUEUE_UNIT
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.record_scan import LogRecord

_PLACE: Final = QUEUE_UNIT.struct("offset", "size")
"""Log offset and size in a unit."""
_LEAST_BYTES: Final = 4 << 10
_MOST_BYTES: Final = 1 << 20
"""Bytes that are looked at for one run: more after each run that nothing has ended."""
_MOST_PASSED: Final = 63
"""Records that are skipped after a look that found none: more after each such look."""


class PlainUnits(NamedTuple):
    """Units of consecutive records of a queue, from queue offset ``first`` on."""

    topic: str
    queue_id: int
    first: int
    units: bytes

    @property
    def end(self) -> int:
        """The queue offset after the last."""
        return self.first + len(self.units) // CQ_UNIT_BYTES

    @property
    def last(self) -> tuple[int, int]:
        """Log offset and size of the record of the last unit."""
        log_offset, size = _PLACE.unpack_from(self.units, len(self.units) - CQ_UNIT_BYTES)
        return log_offset, size


class PlainRun(NamedTuple):
    """Consecutive plain records, and what follows from them."""

    last_offset: int
    last_size: int
    queues: list[PlainUnits]
    hashes: bytes
    """Index hashes of their keys, as native int32."""
    offsets: bytes
    """The log offset of each hash's record, as native int64."""
    timestamps: bytes
    """The store timestamp of each hash's record, as native int64."""
    indexed: int
    """The number of records with keys."""


class PlainRecords:
    """The queues that one reading of the log follows.

    :param units_from: the log offset from which on records get units.
    :param keys_from: the log offset from which on the keys of records are wanted.
    """

    def __init__(self, units_from: int, keys_from: int, *, check_crc: bool) -> None:
        self._scan = CORE.LogScan(units_from, keys_from, check_crc) if CORE is not None else None
        self._bytes = _LEAST_BYTES
        self._pass = self._passed = 0
        self.timestamp = 0
        """The last store timestamp in the last run that can be one, or 0 for none."""
        self.is_stopped = True
        """The record after the last run is not plain."""

    def run(self, view: memoryview, at: int, limit: int, base: int) -> PlainRun | None:
        """Return the run that begins at byte ``at`` of a log file that begins at ``base``, or ``None`` for none."""
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

    def judged(self, record: LogRecord, *, follow: bool) -> None:
        """Python has judged a record; from then on its queue is followed after it, or not."""
        if self._scan is not None:
            self._scan.follow(record.topic, record.queue_id, record.queue_offset + 1 if follow else None)

    def forget(self) -> None:
        """Follow no queue: the log is damaged here."""
        if self._scan is not None:
            self._scan.forget()
