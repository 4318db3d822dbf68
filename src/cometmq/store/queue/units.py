"""Compares units with the records they point to, and repairs damaged units from the log.

A store that was stopped cleanly is opened without checking all its units. So damage in the middle of a queue file is
detected only when it is first read. The missing records are then searched for in the log, between the records of the
nearest sound units.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.limits import UNIT_SEARCH_BYTES, UNIT_SEARCH_UNITS
from cometmq.message.record import BLANK_MAGIC, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, parts_of
from cometmq.store.disk import Disk
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import magics_of
from cometmq.store.log.mapped_file import MappedFile
from cometmq.store.log.record_scan import IDENTITY, NO_QUEUE_OFFSET, ends_in_zeros, read_log_record, record_at
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue

_log = logging.getLogger(__name__)
_identity: Final = IDENTITY.unpack_from


def matches_unit(view: memoryview, offset: int, size: int, queue: ConsumeQueue, queue_offset: int) -> bool:
    """Return whether ``view`` (``size`` bytes at log offset ``offset``) is the record to which a unit of ``queue``
    points.

    Only the record's identity and lengths are compared; the CRC of the body is checked by the reader of the message.
    """
    if len(view) < MIN_RECORD_BYTES:
        return False
    found_size, magic, queue_id, found_queue_offset, found_offset, sys_flag = _identity(view)
    if (
        found_size != size
        or found_offset != offset
        or found_queue_offset != queue_offset
        or queue_id != queue.queue_id
        or sys_flag & NO_QUEUE_OFFSET
        or (magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2)
    ):
        return False
    parts = parts_of(view, 0, size)
    if parts is None:
        return False
    _, _, topic_at, topic_end, _, end = parts
    return end == size and view[topic_at:topic_end] == queue.topic_bytes


def has_properties(view: memoryview) -> bool:
    """Return whether a record accepted by :func:`matches_unit` has properties."""
    parts = parts_of(view, 0, len(view))
    if parts is None:
        return False
    *_, properties_at, end = parts
    return properties_at < end


def points_to_record(view: memoryview, at: int, offset: int, size: int, queue: ConsumeQueue, queue_offset: int) -> bool:
    """Return whether a unit points to its record at byte ``at`` of ``view``. Everything except the CRC is checked."""
    end = at + size
    if not matches_unit(view[at:end], offset, size, queue, queue_offset):
        return False
    return not ends_in_zeros(view, end) or not has_properties(view[at:end])


def marks_lost_message(log: CommitLog, queue: ConsumeQueue, offset: int) -> bool:
    """Return whether an earlier recovery blanked a unit, or made it point to a record that replaces a lost message."""
    unit = queue.unit(offset)
    if unit is None or unit[1] == BLANK_SIZE:
        return unit is not None
    record = record_at(log, unit[0])
    return record is not None and record.size == unit[1] and bool(record.sys_flag & NO_QUEUE_OFFSET)


def restore_units(log: CommitLog, queue: ConsumeQueue, at: int) -> bool:
    """Repair the unit at offset ``at`` and its damaged neighbours. Return True if it points to its record again."""
    if at in queue.lost:
        return False
    unit = queue.unit(at)
    if unit is not None and unit[0] < log.min_offset:
        queue.min_logical = queue.offset_of_log(log.min_offset)  # retention has not cleaned this queue yet
        if at < queue.min_logical:
            return False
    first, start = at, log.min_offset
    while first > queue.min_logical:
        end = _record_end(log, queue, first - 1)
        if end:
            start = end
            break
        first -= 1
        if at - first > UNIT_SEARCH_UNITS:
            break
    last, end = at + 1, log.position
    while last < queue.known_from and last - at <= UNIT_SEARCH_UNITS:
        if _record_end(log, queue, last):
            unit = queue.unit(last)
            assert unit is not None
            end = unit[0]
            break
        last += 1
    found = _search(log, queue, range(first, last), start, min(end, start + UNIT_SEARCH_BYTES))
    _note_lost(log, queue, [offset for offset in range(first, last) if offset not in found])
    try:
        for offset, unit_bytes in found.items():
            queue.write_units(Disk(), offset, unit_bytes)
    except OSError as error:
        _log.warning("units of %s/%d cannot be repaired: %s", queue.topic, queue.queue_id, error)
        _note_lost(log, queue, list(found))
        return False
    if found:
        _log.warning("consumequeue/%s/%d: %d damaged units were repaired", queue.topic, queue.queue_id, len(found))
    return at in found


def _note_lost(log: CommitLog, queue: ConsumeQueue, offsets: list[int]) -> None:
    """Remember unreadable offsets, and log the first unexplained ones in each queue."""
    missing = [offset for offset in offsets if not marks_lost_message(log, queue, offset)]
    if missing and not queue.missing:
        _log.warning(
            "consumequeue/%s/%d: units from offset %d on point to no message and are skipped; stop the broker "
            "and run cometmq pipeline rebuild, which finds their messages if the log has them",
            queue.topic,
            queue.queue_id,
            missing[0],
        )
    queue.note_lost(offsets, missing)


def _record_end(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Return the end of the record to which a unit points, or 0 if it points to none."""
    unit = queue.unit(offset)
    if unit is None or unit[1] <= 0 or unit[1] == BLANK_SIZE or unit[0] < log.min_offset:
        return 0
    segment = log.segment_at(unit[0])
    end = unit[0] + unit[1]
    if segment is None or end > min(segment.end, log.position):
        return 0
    sound = points_to_record(segment.view, unit[0] - segment.start, unit[0], unit[1], queue, offset)
    return end if sound else 0


def _next_record(segment: MappedFile, start: int, limit: int) -> int:
    """Return the position of the next record after a damaged part, or ``limit`` if there is none."""
    for at in magics_of(segment, start, limit):
        if read_log_record(segment.view, at, segment.start + at, check_crc=False) is not None:
            return at
    return limit


def _search(log: CommitLog, queue: ConsumeQueue, wanted: range, start: int, end: int) -> dict[int, bytes]:
    """Return units for the records in ``queue`` between two log offsets, by queue offset."""
    found: dict[int, bytes] = {}
    at = start
    while at < end and (segment := log.segment_at(at)) is not None:
        view = segment.view
        byte = at - segment.start
        limit = min(segment.end, end, log.position) - segment.start
        before = byte
        while byte + MIN_RECORD_BYTES <= limit:
            size, magic, queue_id, queue_offset, place, _ = _identity(view, byte)
            offset = segment.start + byte
            if place != offset or not MIN_RECORD_BYTES <= size <= limit - byte:
                if magic == BLANK_MAGIC:
                    break
                byte = before = _next_record(segment, before + 1, limit)
                continue
            before = byte
            if (
                queue_id == queue.queue_id
                and queue_offset in wanted
                and points_to_record(view, byte, offset, size, queue, queue_offset)
            ):
                record = read_log_record(view, byte, offset, check_crc=False)
                if record is not None:
                    found[queue_offset] = UNIT.pack(offset, size, queue.tags_code_of(record))
            byte += size
        at = segment.end
    return found
