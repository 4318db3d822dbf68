"""Reads a log that may be damaged: all sound records and the damaged parts between them.

Theory of operation. A log position is *sound* if a complete record starts there: its sizes add up, its magic and CRC
are right, and it names this position as its own log offset. If the position after a sound record is not sound, the log
either ends there or is damaged there:

* It is damaged if the log continues afterwards. This is the case if the record's size field, its inner lengths or a
  queue's unit gives an end at which a sound record or the filler follows; or if a search for the magic finds a sound
  record later in this file or in a later one; or if a position file or a sound unit proves that the log continued.
* Otherwise the log ends: the tail is torn, or nothing was written. A slave's log ends at any damage after its last
  proven position: the bytes may have been damaged on the way from the master, which sends them again.

Fault model. Any bytes may be wrong. Bytes that are not part of the log can look like sound records in only two cases.
First, Apache leaves truncated records after the end of its log and overwrites them later (our files are created full of
zeros, and the rest of a failed write is zeroed). Such records are older than those that overwrote them. So if nothing
proves that the log continues after damage, a record older than the last one before the damage is ignored. Second, a
body can contain a copy of a record. So the search skips the inside of any record whose size is known from its fields or
from a unit.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

from cometmq.message.layout import RECORD
from cometmq.message.record import END_FILE_MIN_BLANK_BYTES, MIN_RECORD_BYTES, parts_of
from cometmq.store.log.commit_log import CommitLog, is_filler
from cometmq.store.log.mapped_file import MappedFile, data_part, find_bytes, first_data
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import IDENTITY, LogRecord, is_stored_topic, read_log_record

_SIZE: Final = RECORD.struct("size")
MAGIC_AT: Final = RECORD.offsets["magic"]
_LATEST_MS: Final = 1 << 48
"""Upper bound for store timestamps, so that a damaged timestamp does not become the time of all later messages."""
_ANY_MAGIC: Final = b"\xda\xa3\x20"
"""The first bytes of both record magics."""


class DamagedPart(NamedTuple):
    """A part of a log file that contains no sound record."""

    start: int
    end: int


class DamagedFields(NamedTuple):
    """The fields of a damaged record, each of which may be wrong."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int
    """The record's size computed from its inner lengths, ignoring its size field."""


class LogEvidence(NamedTuple):
    """Evidence about the log from other files. It is used only where the log is damaged."""

    extent: Callable[[int], int]
    """Function that returns the size of the record at a log offset, as stated by the queue's unit, or 0 if no unit
    points to it.
    """
    proven: Callable[[int], int]
    """Function that returns the position up to which the log provably continues, given the store timestamp of its last
    sound record.
    """
    ends_at_damage: bool = False
    """True if damage ends the log unless something proves that it continues, even if sound records follow."""


NOTHING_KNOWN: Final = LogEvidence(lambda _: 0, lambda _: 0)


def read_damaged_fields(view: memoryview, at: int) -> DamagedFields | None:
    """Return the fields of the damaged record at byte ``at``, or ``None`` if its lengths are implausible."""
    room = len(view) - at
    if room < MIN_RECORD_BYTES:
        return None
    parts = parts_of(view, at, len(view))
    if parts is None:
        return None
    _, _, queue_id, queue_offset, _, _ = IDENTITY.unpack_from(view, at)
    _, _, topic_at, topic_end, _, properties_end = parts
    size = properties_end - at
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        return None
    if not is_stored_topic(topic) or not MIN_RECORD_BYTES <= size <= room:
        return None
    return DamagedFields(topic, queue_id, queue_offset, size)


class LogReader:
    """Iterates over the records and damaged parts of the log, from the record at ``start`` to the end of the log.

    Afterwards ``end`` is the end of the log. With ``until``, iteration stops at that position. With ``plain``, runs of
    plain records are returned as one item.
    """

    def __init__(
        self,
        log: CommitLog,
        start: int,
        knowledge: LogEvidence,
        *,
        check_crc: bool,
        until: int | None = None,
        plain: PlainRecords | None = None,
    ) -> None:
        self._log = log
        self._knowledge = knowledge
        self._check_crc = check_crc
        self._until = until
        self._plain = plain
        self._found: int | None = start
        """Next sound position after the damage, or ``None`` if there is none or it was not searched for."""
        self.timestamp = 0
        """The store timestamp of the last sound record."""
        self.end = start

    def __iter__(self) -> Iterator[LogRecord | DamagedPart | PlainRun]:
        log = self._log
        until = self._until
        plain = self._plain
        while (segment := log.segment_at(self.end)) is not None and (until is None or self.end < until):
            view = segment.view
            base = segment.start
            at = self.end - base
            limit = segment.size if until is None else min(segment.size, until - base)
            while at < limit:
                if plain is not None and (run := plain.run(view, at, limit, base)) is not None:
                    self.end = run.last_offset + run.last_size
                    at = self.end - base
                    self.timestamp = plain.timestamp or self.timestamp
                    yield run
                    if at >= limit or not plain.is_stopped:
                        continue
                record = read_log_record(view, at, base + at, check_crc=self._check_crc)
                if record is None:
                    break
                at += record.size
                self.end = base + at
                if 0 < record.store_timestamp < _LATEST_MS:
                    self.timestamp = record.store_timestamp
                yield record
            if at >= limit:
                continue
            if self._is_genuine_filler(segment, at):
                self.end = segment.end
                continue
            end = self._find_damage_end(segment, base + at)
            if end is None:
                return
            damaged = DamagedPart(self.end, end)
            self.end = end
            if plain is not None:
                plain.forget()
            yield damaged

    def _find_damage_end(self, segment: MappedFile, at: int) -> int | None:
        """Return the end of the damaged part that starts at ``at``, or ``None`` if the log ends at ``at``."""
        limit = segment.end if self._until is None else min(segment.end, self._until)
        proven = self._knowledge.proven(self.timestamp) if self._until is None else self._until
        if self._knowledge.ends_at_damage and at >= proven:
            return None
        known = self._knowledge.extent(at)
        known_end = at + known if known >= MIN_RECORD_BYTES and at + known <= limit else 0
        outline = read_damaged_fields(segment.view, at - segment.start)
        own_size = 0
        if at + 4 <= segment.end and not is_filler(segment, at - segment.start):
            own_size = int(_SIZE.unpack_from(segment.view, at - segment.start)[0])
        for size in (known, own_size, outline.size if outline is not None else 0):
            end = at + size
            if size >= MIN_RECORD_BYTES and end <= limit and self._goes_on(segment, end, proven):
                return end
        found = self._next_sound(known_end or at + 1, proven)
        if found is None and at >= proven:
            return None
        return known_end or min(limit, found if found is not None else proven)

    def _is_genuine_filler(self, segment: MappedFile, at: int) -> bool:
        """Return whether a genuine filler ends the file at byte ``at``, which means that all records after it in the
        file are older.

        A genuine filler is followed by zeros, or by bytes that Apache truncated and left there.
        """
        return is_filler(segment, at) and not any(
            (record := self._record_at(segment, segment.start + place)) is not None
            and record.store_timestamp >= self.timestamp
            for place in magics_of(segment, at + END_FILE_MIN_BLANK_BYTES, segment.size)
        )

    def _goes_on(self, segment: MappedFile, end: int, proven: int) -> bool:
        """Return whether a record or a file is known to end at ``end``."""
        if end in (self._until, proven):
            return True
        return is_filler(segment, end - segment.start) or self._is_sound(segment, end, proven)

    def _is_sound(self, segment: MappedFile, at: int, proven: int) -> bool:
        record = self._record_at(segment, at)
        return record is not None and (at < proven or record.store_timestamp >= self.timestamp)

    @staticmethod
    def _record_at(segment: MappedFile, at: int) -> LogRecord | None:
        record = read_log_record(segment.view, at - segment.start, at, check_crc=True)
        return record if record is not None and at + record.size + END_FILE_MIN_BLANK_BYTES <= segment.end else None

    def _next_sound(self, at: int, proven: int) -> int | None:
        """Return the first sound position at or after ``at``, in this file or in a later one."""
        if self._found is None or self._found >= at:
            return self._found
        self._found = None
        while (segment := self._log.segment_at(at)) is not None and (self._until is None or at < self._until):
            limit = segment.end if self._until is None else min(segment.end, self._until)
            for place in magics_of(segment, at - segment.start, limit - segment.start):
                if self._is_sound(segment, segment.start + place, proven):
                    self._found = segment.start + place
                    return self._found
            at = segment.end
        return None


def magics_of(file: MappedFile, start: int, limit: int) -> Iterator[int]:
    """Yield the positions from ``start`` on at which a record's magic is found in a file. Holes are skipped."""
    with file.opened() as fd:
        yield from find_magics(fd, file.view, start, limit)


def find_magics(fd: int, view: memoryview, start: int, limit: int) -> Iterator[int]:
    """Yield the positions of magics in a mapped file like :func:`magics_of`."""
    content = cast(mmap.mmap, view.obj)
    at = start + MAGIC_AT
    while (at := first_data(fd, at, limit)) < limit:
        _, hole = data_part(fd, at, limit) or (at, limit)
        at = max(start + MAGIC_AT, at - len(_ANY_MAGIC))
        while (place := find_bytes(content, _ANY_MAGIC, at, hole)) >= 0:
            yield place - MAGIC_AT
            at = place + 1
        at = hole
