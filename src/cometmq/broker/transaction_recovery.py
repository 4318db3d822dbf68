"""Finds the open transactions when a broker starts: half messages without an op message.

Both queues are read from where the offsets of CID_RMQ_SYS_TRANS say that all before is done with. Two
things that a crash can leave half-done are mended: a committed message without its op message, and a
half message that was put back while its copy stands behind it. Their op messages are written late.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from cometmq.broker.half_message import HALF_QUEUE, op_offsets
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.open_transactions import OpenTransactions, Transaction, describe
from cometmq.limits import COMMITTED_SCAN_BYTES
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from cometmq.message.properties import (
    REAL_TOPIC,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from cometmq.message.record import StoredRecord
from cometmq.store.message_store import MessageStore, TopicQueue

_log = logging.getLogger(__name__)

_PUT_BACK_MARK: Final = TRAN_PREPARED_QUEUE_OFFSET.encode()
_CHECKED_MARK: Final = TRANSACTION_CHECK_TIMES.encode()


def find_open_transactions(store: MessageStore, offsets: ConsumerOffsetManager) -> tuple[OpenTransactions, list[int]]:
    """The table of open transactions, and the half offsets that are over but lack an op message."""
    halves = store.queue(TRANS_HALF_TOPIC, HALF_QUEUE)
    ops = store.queue(TRANS_OP_HALF_TOPIC, HALF_QUEUE)
    first_half = _start(offsets, halves)
    first_op = _start(offsets, ops)
    done = _done(store, ops, first_op, first_half, halves.committed)
    open_now: dict[int, Transaction | None] = {}
    logged: dict[int, int] = {}
    checked: list[int] = []
    for offset in range(first_half, halves.committed):
        is_done = done[offset - first_half]
        if is_done and not open_now:
            continue  # nothing before it that it could be a copy of
        unit = halves.unit(offset)
        data = store.record_at(unit[0], unit[1]) if unit is not None else None
        if unit is None or data is None:
            continue  # its log file is gone: nothing can be committed any more
        if not is_done:
            open_now[offset] = None
            logged[unit[0]] = offset
        if _CHECKED_MARK in data or _PUT_BACK_MARK in data:
            checked.append(offset)
    late: list[int] = []
    if checked:
        looked_at = sorted({*open_now, *checked})
        late = _drop_replaced(open_now, ((offset, _record(store, halves, offset)) for offset in looked_at))
    for committed, prepared in _committed_since(store, halves, ops, min(logged, default=None)):
        offset = logged.get(prepared, -1)
        if offset in open_now and _came_from(store, committed, _record(store, halves, offset)):
            del open_now[offset]
            late.append(offset)
    if open_now or late:
        _log.info("%d transactions are open, %d ended without their op message", len(open_now), len(late))
    return OpenTransactions(store, halves, ops, open_now, (first_half, first_op)), late


def _record(store: MessageStore, queue: TopicQueue, offset: int) -> StoredRecord | None:
    unit = queue.unit(offset)
    return store.decoded_at(unit[0]) if unit is not None else None


def _came_from(store: MessageStore, committed: int, half: StoredRecord | None) -> bool:
    """Whether a message is what a half message was committed to: a client may set the bit of its sysFlag, too."""
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
    """Take out the half messages whose copy is there too, open or not, and note of copies what they are copies of.

    Our copies name their first half message. Apache's do not: one that was checked n times replaces the
    same message, by key, group, producer and time, that was checked n - 1 times, if that is there too.
    """
    standing: dict[int, int] = {}
    """First offset → offset of the newest copy so far."""
    alike: dict[tuple[object, ...], list[int]] = {}
    """What identifies a message with a number of checks → those that no copy replaces yet."""
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


def _start(offsets: ConsumerOffsetManager, queue: TopicQueue) -> int:
    """Where a queue is to be read from: behind what is done with, inside the queue.

    An offset past the end was written by a broker that lost its last messages; new ones will take their places.
    """
    committed = offsets.query(TRANSACTION_GROUP, queue.topic, queue.queue_id)
    if committed > queue.committed:
        offsets.note(TRANSACTION_GROUP, queue.topic, queue.queue_id, queue.committed)
    return min(max(committed, queue.min_offset()), queue.committed)


def _done(store: MessageStore, ops: TopicQueue, at: int, first_half: int, end_half: int) -> bytearray:
    """A byte for each half message from ``first_half`` on: whether an op message names it."""
    done = bytearray(end_half - first_half)
    for offset in range(at, ops.committed):
        op = _record(store, ops, offset)
        for half in op_offsets(op.body) if op is not None else ():
            if first_half <= half < end_half:
                done[half - first_half] = 1
    return done


def _committed_since(
    store: MessageStore, halves: TopicQueue, ops: TopicQueue, first: int | None
) -> list[tuple[int, int]]:
    """What was committed from log offset ``first`` on, near the log's end: log offsets of it and its half message."""
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
