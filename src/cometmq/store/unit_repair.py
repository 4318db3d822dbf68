"""A unit that leads nowhere although its record is there is found again in the log, when somebody reads it.

A store that was stopped cleanly opens without a look at all its units, so damage within a queue's file is met by the
first reader only. Between the records of the sound units around it the log is searched for those of the queue.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from cometmq.limits import UNIT_SEARCH_BYTES, UNIT_SEARCH_UNITS
from cometmq.message.record import BLANK_MAGIC, MIN_RECORD_BYTES
from cometmq.store.commit_log import CommitLog
from cometmq.store.disk import Disk
from cometmq.store.log_reader import places_with_magic
from cometmq.store.mapped_file import MappedFile
from cometmq.store.record_scan import leads_to_record, read_log_record
from cometmq.store.topic_queue import BLANK_SIZE, UNIT, TopicQueue

_log = logging.getLogger(__name__)
_PLACE: Final = struct.Struct(">ii4xi4xqq")


def restore_units(log: CommitLog, queue: TopicQueue, at: int) -> bool:
    """Mend the unit at offset ``at`` and the damaged ones beside it; whether it leads to its record again."""
    if at in queue.lost:
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
    queue.lost.update(offset for offset in range(first, last) if offset not in found)
    try:
        for offset, unit_bytes in found.items():
            queue.write_units(Disk(), offset, unit_bytes)
    except OSError as error:
        _log.warning("units of %s/%d cannot be mended: %s", queue.topic, queue.queue_id, error)
        queue.lost.add(at)
        return False
    if found:
        _log.warning("consumequeue/%s/%d: %d damaged units were mended", queue.topic, queue.queue_id, len(found))
    return at in found


def _record_end(log: CommitLog, queue: TopicQueue, offset: int) -> int:
    """The end of the record that a unit leads to; 0 when it leads to none."""
    unit = queue.unit(offset)
    if unit is None or unit[1] <= 0 or unit[1] == BLANK_SIZE or unit[0] < log.min_offset:
        return 0
    segment = log.segment_at(unit[0])
    end = unit[0] + unit[1]
    if segment is None or end > min(segment.end, log.position):
        return 0
    sound = leads_to_record(segment.view, unit[0] - segment.start, unit[0], unit[1], queue, offset)
    return end if sound else 0


def _next_record(segment: MappedFile, start: int, limit: int) -> int:
    """The next byte at which a record stands, behind damage; ``limit`` when there is none."""
    for at in places_with_magic(segment, start, limit):
        if read_log_record(segment.view, at, segment.start + at, check_crc=False) is not None:
            return at
    return limit


def _search(log: CommitLog, queue: TopicQueue, wanted: range, start: int, end: int) -> dict[int, bytes]:
    """The units of the records of ``queue`` between two places of the log, by queue offset."""
    found: dict[int, bytes] = {}
    at = start
    while at < end and (segment := log.segment_at(at)) is not None:
        view = segment.view
        byte = at - segment.start
        limit = min(segment.end, end, log.position) - segment.start
        before = byte
        while byte + MIN_RECORD_BYTES <= limit:
            size, magic, queue_id, queue_offset, place = _PLACE.unpack_from(view, byte)
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
                and leads_to_record(view, byte, offset, size, queue, queue_offset)
            ):
                record = read_log_record(view, byte, offset, check_crc=False)
                if record is not None:
                    code = record.store_timestamp + queue.delay_ms if queue.delay_ms else record.tags_code
                    found[queue_offset] = UNIT.pack(offset, size, code)
            byte += size
        at = segment.end
    return found
