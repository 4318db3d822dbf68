"""Reads a queue's messages as slices of the log, without decoding them (``DefaultMessageStore.getMessage``).

Adjacent records become one slice; small records are instead copied into one chunk by the compiled core. Units that this
process did not append are compared with the records they point to, so that only valid records leave the store. A
damaged unit is repaired from the log once (:mod:`cometmq.store.queue.units`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.core import CORE
from cometmq.message.layout import RECORD
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import store_timestamp_of
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_DTYPE, ConsumeQueue
from cometmq.store.queue.units import matches_unit, points_to_record, restore_units

CHOOSE_UNITS_MIN: Final = 64
"""Minimum number of units for which a ``Chooser`` is used. Checking fewer units one by one is faster."""
CHOOSE_UNITS_MAX: Final = 8_192
"""Number of units passed to a ``Chooser`` in one call."""
FILTER_SCAN_UNITS_MIN: Final = 16_000 // CQ_UNIT_BYTES
"""Minimum number of units that one filtered read checks (Apache: max(16000 bytes, 20 per requested message))."""
_SIZE: Final = RECORD.struct("size")
_VECTOR_UNITS_MIN: Final = 24
"""Minimum number of units for which NumPy finds matching tags faster than a loop."""
DEFAULT_MAX_BYTES: Final = 256 * 1024
COPIED_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a result that is copied into one chunk instead of being returned as slices of the log."""
SMALL_RECORD_BYTES: Final = 4096
"""If the first record has at most this size, larger results are copied too: slices would cost more."""
COPIED_SMALL_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of such a result: the default of ``maxTransferBytesOnMessageInMemory``, which a pull of 1,024 records of
1 KB fills.
"""

Ints = npt.NDArray[np.int64]


class GetMessageStatus(enum.Enum):
    """The status of a read, with RocketMQ's names."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class GetResult(msgspec.Struct):
    """The result of one read. ``chunks`` are pieces of the log, in order, which contain ``count`` records in total."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    chunks: list[bytes | memoryview] = []
    count: int = 0
    size: int = 0
    log_offset: int = -1
    """Log offset of the record to which the last checked unit points."""


Selection = tuple[Iterable[int], Iterable[tuple[int, int, int]], int]
"""Queue offsets, their units, and the offset at which the next read continues."""
Predicate = Callable[[memoryview], bool]
Chooser = Callable[[ConsumeQueue, int, int, int], tuple[list[int], int]]
"""Function that chooses messages. It is called with a queue, an offset, the offset to stop at, and the maximum number
of messages, and returns the chosen offsets in ascending order and the offset at which to continue. No predicate checks
the chosen messages again.
"""


def get_message(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    tag_codes: frozenset[int] | None,
    predicate: Predicate | None,
    max_bytes: int,
    choose: Chooser | None = None,
) -> GetResult:
    """Read up to ``max_messages`` records starting at ``offset``.

    See :meth:`cometmq.store.message_store.MessageStore.get_message`.
    """
    low = queue.min_logical
    high = queue.readable
    if not low <= offset < high:
        return _outside(queue, offset)
    if max_messages < 1:
        max_messages = 1
    by_codes = predicate is None or tag_codes is not None
    if CORE is not None and by_codes and choose is None:
        found = _by_core(log, queue, offset, max_messages, tag_codes, max_bytes)
        if found is not None and (predicate is None or all(map(predicate, _records_of(found.chunks)))):
            return found
    if choose is not None and high - offset < CHOOSE_UNITS_MIN:
        choose = None
    selection = _select(queue, offset, max_messages, tag_codes, predicate is not None, choose)
    if selection is None:
        following = offset - offset % queue.file_units + queue.file_units
        return GetResult(GetMessageStatus.OFFSET_FOUND_NULL, min(following, high), low, high)
    result = _collect(log, queue, selection, predicate if choose is None else None, max_messages, max_bytes)
    if result is None:
        return get_message(log, queue, offset, max_messages, tag_codes, predicate, max_bytes, choose)
    return result


def _select(
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    tag_codes: frozenset[int] | None,
    has_predicate: bool,
    choose: Chooser | None,
) -> Selection | None:
    """Select the units whose records are to be read. Return ``None`` if no unit can be read at ``offset``."""
    if choose is not None:
        count = CHOOSE_UNITS_MAX
    elif tag_codes is None and not has_predicate:
        count = max_messages
    else:
        count = max(FILTER_SCAN_UNITS_MIN, max_messages)
    raw = queue.units(offset, count)
    if not raw:
        return None
    end = offset + len(raw) // CQ_UNIT_BYTES
    if choose is not None:
        hits, next_offset = choose(queue, offset, end, max_messages)
        return hits, [UNIT.unpack_from(raw, (hit - offset) * CQ_UNIT_BYTES) for hit in hits], next_offset
    return _matching(raw, offset, tag_codes, end - offset if has_predicate else max_messages)


def _collect(
    log: CommitLog,
    queue: ConsumeQueue,
    selection: Selection,
    predicate: Predicate | None,
    max_messages: int,
    max_bytes: int,
) -> GetResult | None:
    """Read the records of the selected units. Return ``None`` if units were repaired and the caller must
    select again.
    """
    positions, units, next_offset = selection
    chunks: list[bytes | memoryview] = []
    count, total, start, removed = 0, 0, -1, False
    verified_from = queue.known_from
    run_start = run_end = run_limit = run_base = 0
    run_view: memoryview | None = None
    log_min, position = log.min_offset, log.position
    for at, (start, size, _) in zip(positions, units, strict=True):
        if count >= max_messages or (count and total + size > max_bytes):
            next_offset = at
            break
        end = start + size
        exists = start >= log_min and size != BLANK_SIZE
        if exists and (run_view is None or start < run_base or end > run_limit):
            if run_view is not None and run_end > run_start:
                chunks.append(run_view[run_start - run_base : run_end - run_base])
            run_start = run_end = 0
            segment = log.segment_at(start)
            if segment is None or end > position or end > segment.end or size <= 0:
                run_view = None
                exists = False
            else:
                run_view = segment.view
                run_base = segment.start
                run_limit = min(segment.end, position)
        if not exists:
            if at < verified_from and restore_units(log, queue, at):
                return None
            removed = True
            continue
        assert run_view is not None
        if at < verified_from and not points_to_record(run_view, start - run_base, start, size, queue, at):
            if restore_units(log, queue, at):
                return None
            continue
        if predicate is not None and not predicate(run_view[start - run_base : end - run_base]):
            continue
        if start != run_end:
            if run_end > run_start:
                chunks.append(run_view[run_start - run_base : run_end - run_base])
            run_start = start
        run_end = end
        count += 1
        total += size
    if run_view is not None and run_end > run_start:
        chunks.append(run_view[run_start - run_base : run_end - run_base])
    without = GetMessageStatus.MESSAGE_WAS_REMOVING if removed else GetMessageStatus.NO_MATCHED_MESSAGE
    status = GetMessageStatus.FOUND if count else without
    return GetResult(status, next_offset, queue.min_logical, queue.readable, chunks, count, total, start)


def _by_core(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    tag_codes: frozenset[int] | None,
    max_bytes: int,
) -> GetResult | None:
    """Let the compiled core find the records. Return ``None`` if Python must read them instead."""
    raw = queue.units(offset, max_messages if tag_codes is None else max(FILTER_SCAN_UNITS_MIN, max_messages))
    start, first_size, _ = UNIT.unpack_from(raw) if raw else (-1, 0, 0)
    segment = log.segment_at(start) if raw else None
    if segment is None:
        return None
    view = segment.view
    found = CORE.records(
        raw,
        None if tag_codes is None else list(tag_codes),
        (queue.topic, queue.queue_id, offset, queue.known_from),
        (view, segment.start, log.min_offset, min(segment.end, log.position)),
        (max_messages, max_bytes, COPIED_SMALL_BYTES_MAX if first_size <= SMALL_RECORD_BYTES else COPIED_BYTES_MAX),
    )
    if found is None:
        return None
    copied, runs, count, size, looked_at, last = found
    chunks = [view[begin:end] for begin, end in runs] if copied is None else [copied]
    status = GetMessageStatus.FOUND if count else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetResult(status, offset + looked_at, queue.min_logical, queue.readable, chunks, count, size, last)


def _records_of(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for chunk in chunks:
        view, at = memoryview(chunk), 0
        while at < len(view):
            size = _SIZE.unpack_from(view, at)[0]
            yield view[at : at + size]
            at += size


def _outside(queue: ConsumeQueue, offset: int) -> GetResult:
    low, high = queue.min_logical, queue.readable
    if high < offset <= queue.committed:  # it was read at another member, which knew earlier that it was confirmed
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


def _matching(raw: bytes | memoryview, offset: int, tag_codes: frozenset[int] | None, most: int) -> Selection:
    """Return the offsets and units whose tags code is in ``tag_codes``, and the offset at which to continue."""
    end = offset + len(raw) // CQ_UNIT_BYTES
    if tag_codes is None:
        return range(offset, end), UNIT.iter_unpack(raw), end
    if len(raw) < _VECTOR_UNITS_MIN * CQ_UNIT_BYTES:
        found = [(at, unit) for at, unit in enumerate(UNIT.iter_unpack(raw), offset) if unit[2] in tag_codes]
        return [at for at, _ in found], [unit for _, unit in found], end
    units = np.frombuffer(raw, UNIT_DTYPE)
    codes = units["tags"]
    if len(tag_codes) == 1:
        hits = np.flatnonzero(codes == next(iter(tag_codes)))
    else:
        hits = np.flatnonzero(np.isin(codes, np.fromiter(tag_codes, ">i8", len(tag_codes))))
    if len(hits) > most:
        end = offset + int(hits[most])
        hits = hits[:most]
    return (hits + offset).tolist(), units[hits].tolist(), end


# --- time -------------------------------------------------------------------------------------
def store_time(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Return the store timestamp (ms) of the message at ``offset``, or -1 if it cannot be read."""
    unit = queue.unit(offset)
    if unit is None or unit[1] == BLANK_SIZE:
        return -1
    view = log.view(unit[0], unit[1])
    if view is None or not matches_unit(view, unit[0], unit[1], queue, offset):
        return -1
    return store_timestamp_of(view)


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp: int) -> int:
    """Return the offset of the message whose store timestamp is nearest to ``timestamp``, as RocketMQ 4.9 does.

    An exact match takes precedence. If two messages are equally near, the earlier one is returned. A time before the
    first message gives the first message, and a time after the last message gives the last message, not the end of the
    queue. An empty queue gives 0.
    """
    low, high = _file_by_time(log, queue, timestamp)
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    while low <= high:
        middle = (low + high) // 2
        stored = store_time(log, queue, middle)
        if stored == timestamp:
            return middle
        if stored > timestamp:
            high = middle - 1
            after = (stored, middle)
        else:
            low = middle + 1
            if stored >= 0:
                before = (stored, middle)
    if before is None:
        return 0 if after is None else after[1]
    if after is None or timestamp - before[0] <= after[0] - timestamp:
        return before[1]
    return after[1]


def first_by_time(log: CommitLog, queue: ConsumeQueue, timestamp: int) -> int:
    """Return the first offset with a store timestamp of ``timestamp`` (ms) or later, or the end of the queue.

    Messages whose records cannot be read are treated as older, like messages that retention has deleted.
    """
    low, high = queue.min_logical, queue.readable
    while low < high:
        middle = (low + high) // 2
        if store_time(log, queue, middle) < timestamp:
            low = middle + 1
        else:
            high = middle
    return low


def _file_by_time(log: CommitLog, queue: ConsumeQueue, timestamp: int) -> tuple[int, int]:
    """Return the first and last offset in the first queue file whose last message is not older than ``timestamp``."""
    low = queue.min_logical
    last = queue.readable - 1
    while True:
        file_last = low - low % queue.file_units + queue.file_units - 1
        if file_last >= last:
            return low, last
        if store_time(log, queue, file_last) >= timestamp:
            return low, file_last
        low = file_last + 1


# --- many records ------------------------------------------------------------------------------
class UnitRun(NamedTuple):
    """A run of units whose records are in one log file."""

    numbers: Ints
    """Indexes of the units, counted from the first requested unit."""
    view: memoryview
    base: int
    """The log offset of the first byte of ``view``."""
    at: Ints
    """Positions in ``view`` at which the records of the units start."""
    sizes: Ints


def unit_runs(log: CommitLog, queue: ConsumeQueue, offset: int, count: int) -> tuple[list[UnitRun], Ints]:
    """Return the runs of up to ``count`` units from ``offset`` on, and the log offsets in these units.

    Units are read only up to the end of the queue file. A unit whose record cannot be read is not in any run. Only a
    record's position is checked, not its content.
    """
    units = np.frombuffer(queue.units(offset, count), UNIT_DTYPE)
    starts: Ints = units["offset"].astype(np.int64)
    sizes: Ints = units["size"].astype(np.int64)
    ends = starts + sizes
    if len(starts) and (run := _only_run(log, starts, sizes, ends)):
        return [run], starts
    readable = (starts >= log.min_offset) & (ends <= log.position) & (sizes >= MIN_RECORD_BYTES) & (sizes != BLANK_SIZE)
    numbers = readable.nonzero()[0]
    runs: list[UnitRun] = []
    while len(numbers):
        segment = log.segment_at(int(starts[numbers[0]]))
        if segment is None:
            return runs, starts
        inside = (starts[numbers] >= segment.start) & (starts[numbers] < segment.end)
        mine = numbers[inside]
        mine = mine[ends[mine] <= segment.end]
        runs.append(UnitRun(mine, segment.view, segment.start, starts[mine] - segment.start, sizes[mine]))
        numbers = numbers[~inside]
    return runs, starts


def _only_run(log: CommitLog, starts: Ints, sizes: Ints, ends: Ints) -> UnitRun | None:
    """Return all units as one run, or ``None`` if they form several runs or a record cannot be read."""
    segment = log.segment_at(int(starts[0]))
    if segment is None or int(sizes.min()) < MIN_RECORD_BYTES or int(sizes.max()) == BLANK_SIZE:
        return None
    if int(starts.min()) < max(segment.start, log.min_offset) or int(ends.max()) > min(segment.end, log.position):
        return None
    return UnitRun(np.arange(len(starts)), segment.view, segment.start, starts - segment.start, sizes)
