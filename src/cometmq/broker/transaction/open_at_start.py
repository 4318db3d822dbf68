"""Finds the open transactions when a broker starts, by reading the half queue and the op queue.

A million transactions that were checked have three million records, so only the needed parts of a record are decoded.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from cometmq.broker.limits import COMMITTED_SCAN_BYTES
from cometmq.broker.transaction.half_message import describe, op_offsets
from cometmq.broker.transaction.open_pages import Transaction
from cometmq.message.layout import HOSTS_V6, RECORD, record_offsets
from cometmq.message.properties import (
    REAL_TOPIC,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    decode_properties,
)
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Parts, StoredRecord, body_crc, parts_of
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue.consume_queue import UNIT

_log = logging.getLogger(__name__)

_PUT_BACK_MARK: Final = TRAN_PREPARED_QUEUE_OFFSET.encode()
_CHECKED_MARK: Final = TRANSACTION_CHECK_TIMES.encode()
_UNITS: Final = 4_096
"""Number of queue units that are read at once."""
_HEAD: Final = RECORD.struct("magic", "body_crc", "physical_offset", "sys_flag", "born_timestamp").unpack_from
_MAGICS: Final = frozenset({MESSAGE_MAGIC, MESSAGE_MAGIC_V2})
_STORED_AT: Final = {bits: Struct(f">{at}xq").unpack_from for bits, at in record_offsets("store_timestamp").items()}
"""Unpacks the store timestamp of a record, by the bits of its hosts."""


class _Halves(NamedTuple):
    """The half messages that have no op message."""

    open_now: dict[int, Transaction | None]
    """The open ones by offset, with the transaction of each copy."""
    opened: array[int]
    """Offsets of all of them."""
    logged: array[int]
    """Log offsets of all of them."""
    late: list[int]
    """Offsets of those that have ended nevertheless: a copy has replaced them."""


class _Half(msgspec.Struct, gc=False):
    """The fields of a half message that describe its transaction."""

    queue_offset: int
    born_timestamp: int
    store_timestamp: int
    properties: dict[str, str]


class _Record(NamedTuple):
    """A complete record: its fields that are needed here, and the places of its parts."""

    crc: int
    sys_flag: int
    born_timestamp: int
    parts: Parts

    def body(self, data: bytes) -> bytes | None:
        """Return the body, or ``None`` if it is damaged."""
        body = data[self.parts[0] : self.parts[1]]
        return body if body_crc(body) == self.crc else None

    def half(self, data: bytes, offset: int) -> _Half:
        """Return the fields of the half message at an offset of the half queue."""
        text = str(data[self.parts[4] :], "utf-8", "replace")
        stored: int = _STORED_AT[self.sys_flag & HOSTS_V6](data)[0]
        return _Half(offset, self.born_timestamp, stored, decode_properties(text))


def find_open(
    store: MessageStore, halves: ConsumeQueue, ops: ConsumeQueue, first: tuple[int, int]
) -> tuple[dict[int, Transaction | None], list[int]]:
    """Read both queues; return the open half messages by offset, and the ended ones that have no op message.

    Copies are recorded immediately, other half messages when a round checks them.
    """
    first_half, first_op = first
    done = _find_done(store, ops, first_op, first_half, halves.committed)
    found = _read_halves(store, halves, first_half, done) or _read_halves_of_apache(store, halves, first_half, done)
    open_now, opened, logged, late = found
    for committed, prepared in _committed_since(store, halves, ops, logged[0] if logged else None):
        place = bisect_left(logged, prepared)
        if place == len(logged) or logged[place] != prepared or opened[place] not in open_now:
            continue
        if _is_committed_from(store, committed, half_at(store, halves, opened[place])):
            del open_now[opened[place]]
            late.append(opened[place])
    if open_now or late:
        _log.info("%d transactions are open; %d ended without an op message", len(open_now), len(late))
    return open_now, late


def half_at(store: MessageStore, halves: ConsumeQueue, offset: int) -> StoredRecord | None:
    """Return the half message at an offset, or ``None`` if it cannot be read."""
    unit = halves.unit(offset)
    return store.decoded_at(unit[0]) if unit is not None else None


def _units(queue: ConsumeQueue, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the offset, log offset and size of each message that has a unit."""
    while at < end:
        units = queue.units(at, min(_UNITS, end - at), stored=True)
        for log_offset, size, _ in UNIT.iter_unpack(units):
            yield at, log_offset, size
            at += 1
        at += not units


def _sound(data: bytes, log_offset: int, size: int) -> _Record | None:
    """Return the fields of a record, or ``None`` if it is not the complete record to which a unit points."""
    if len(data) != size:
        return None
    magic, crc, found_offset, sys_flag, born_timestamp = _HEAD(data)
    if magic not in _MAGICS or found_offset != log_offset:
        return None
    parts = parts_of(data, 0, size)
    return None if parts is None or parts[5] != size else _Record(crc, sys_flag, born_timestamp, parts)


def _read_halves(store: MessageStore, halves: ConsumeQueue, first: int, done: bytearray) -> _Halves | None:
    """Read the half messages in one pass; return ``None`` if one of them is a copy of Apache's.

    CometMQ's copies contain the offset of their first half message, so one number for each transaction is kept.
    """
    open_now: dict[int, Transaction | None] = {}
    opened, logged = array("q"), array("q")
    late: list[int] = []
    standing: dict[int, int] = {}
    """Offset of the newest copy so far, by first offset."""
    for offset, log_offset, size in _units(halves, first, first + len(done)):
        is_done = done[offset - first]
        if is_done and not open_now:
            continue  # no open half message is before this one, so it cannot be a copy of one
        data = store.bytes_at(log_offset)
        found = None if data is None else _sound(data, log_offset, size)
        if data is None or found is None:
            continue  # the message's log file is deleted: the transaction can no longer be committed
        if not is_done:
            open_now[offset] = None
            opened.append(offset)
            logged.append(log_offset)
        if _PUT_BACK_MARK not in data and _CHECKED_MARK not in data:
            continue
        if found.body(data) is None:
            continue
        noted = describe(found.half(data, offset))
        if noted.first_offset == offset and noted.check_times:
            return None
        replaced = standing.get(noted.first_offset, noted.first_offset)
        standing[noted.first_offset] = offset
        if replaced != offset and replaced in open_now:
            late.append(replaced)
            del open_now[replaced]
        if noted.first_offset != offset and not is_done:
            open_now[offset] = noted
    return _Halves(open_now, opened, logged, late)


def _read_halves_of_apache(store: MessageStore, halves: ConsumeQueue, first: int, done: bytearray) -> _Halves:
    """Read the half messages, and look for those that a copy of Apache's has replaced."""
    open_now: dict[int, Transaction | None] = {}
    opened, logged = array("q"), array("q")
    looked_at: list[int] = []
    for offset, log_offset, size in _units(halves, first, first + len(done)):
        data = store.record_at(log_offset, size)
        if data is None:
            continue
        if not done[offset - first]:
            open_now[offset] = None
            opened.append(offset)
            logged.append(log_offset)
        if not done[offset - first] or (open_now and (_PUT_BACK_MARK in data or _CHECKED_MARK in data)):
            looked_at.append(offset)
    late = _drop_replaced(open_now, ((offset, half_at(store, halves, offset)) for offset in looked_at))
    return _Halves(open_now, opened, logged, late)


def _is_committed_from(store: MessageStore, committed: int, half: StoredRecord | None) -> bool:
    """Return whether a message was committed from a half message."""
    record = store.decoded_at(committed)
    return (
        record is not None
        and half is not None
        and record.topic == half.properties.get(REAL_TOPIC)
        and record.properties.get(TRAN_MSG, "").lower() == "true"
        and record.properties.get(UNIQ_KEY) == half.properties.get(UNIQ_KEY)
    )


def _drop_replaced(
    open_now: dict[int, Transaction | None], records: Iterable[tuple[int, StoredRecord | None]]
) -> list[int]:
    """Remove half messages that have been replaced by a copy; record the first offset of each copy.

    CometMQ's copies contain the offset of their first half message. Apache's do not: a message checked n times replaces
    the message with the same key, group, producer and time that was checked n - 1 times.
    """
    standing: dict[int, int] = {}
    """Offset of the newest copy so far, by first offset."""
    alike: dict[tuple[object, ...], list[int]] = {}
    """Offsets without a known copy, by message identity and number of checks."""
    firsts: dict[int, int] = {}
    for offset, half in records:
        if half is None:
            continue
        noted = describe(half)
        name = (half.properties.get(UNIQ_KEY), noted.group, half.born_host, half.born_timestamp, half.body_crc)
        if noted.first_offset == offset and noted.check_times:
            replaced = alike.get((*name, noted.check_times - 1))
            if replaced:
                noted.first_offset = firsts[replaced.pop(0)]
        firsts[offset] = noted.first_offset
        alike.setdefault((*name, noted.check_times), []).append(offset)
        if noted.first_offset != offset and offset in open_now:
            open_now[offset] = noted
        standing[noted.first_offset] = offset
    over = [offset for offset, first in firsts.items() if standing[first] != offset and offset in open_now]
    for offset in over:
        del open_now[offset]
    return over


def _find_done(store: MessageStore, ops: ConsumeQueue, at: int, first_half: int, end_half: int) -> bytearray:
    """Return a byte for each half message starting at ``first_half``, which is 1 if an op message ends it."""
    done = bytearray(end_half - first_half)
    for _, log_offset, size in _units(ops, at, ops.committed):
        data = store.bytes_at(log_offset)
        op = None if data is None else _sound(data, log_offset, size)
        body = None if data is None or op is None else op.body(data)
        for half in op_offsets(body) if body else ():
            if first_half <= half < end_half:
                done[half - first_half] = 1
    return done


def _committed_since(
    store: MessageStore, halves: ConsumeQueue, ops: ConsumeQueue, first: int | None
) -> list[tuple[int, int]]:
    """Map the log offset of each message committed since log offset ``first`` to that of its half message."""
    if first is None:
        return []
    horizon = store.max_physical_offset - COMMITTED_SCAN_BYTES
    if first < horizon:
        starts = [store.last_record[0]]
        for queue in (halves, ops):
            unit = queue.unit(queue.offset_of_log(horizon))
            if unit is not None:
                starts.append(unit[0])
        first = min(starts)
    return list(store.prepared_offsets(first))
