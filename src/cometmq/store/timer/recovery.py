"""Opens the timer log of a store: its files, and the deliveries in the CommitLog since the last save."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final

from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import TIMER_OUT_MS, property_mark
from cometmq.message.record import decode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.position import Delivered, LogEnd, TimerPosition

_log = logging.getLogger(__name__)

_TIMER_CHECK: Final = struct.Struct(">qqq")
"""Unpacks RocketMQ 5's checkpoint: the time up to which the wheel was read, a position in its log, and the next queue
offset to read.
"""
_MARK: Final = property_mark(TIMER_OUT_MS).encode()


def open_timer_log(store: MessageStore) -> TimerLog:
    """Open the timer log in ``comet/timer`` below the store's directory. Findings are logged.

    :raises StoreError: see :meth:`TimerLog.open`.
    """
    timer_log = TimerLog(store.config.root / "comet" / "timer", store.disk)
    timer_log.open(_end(store))
    for line in timer_log.findings:
        _log.warning("%s", line)
    apache = _position_of_apache(store) if not timer_log.exists else None
    if apache is not None:
        _log.warning("config/timercheck: continuing %s where Apache RocketMQ stopped", TIMER_TOPIC)
        timer_log.delivered = Delivered(apache, {})
    elif timer_log.exists or store.stored_end(TIMER_TOPIC, 0):
        found = dict(_deliveries(store, timer_log.position.log_offset))
        timer_log.delivered = Delivered(timer_log.position, found)
    return timer_log


def _end(store: MessageStore) -> LogEnd:
    last = store.decoded_at(store.last_record[0]) if store.last_record[0] >= 0 else None
    serial = store.stored_end(TIMER_TOPIC, 0)
    end = store.max_physical_offset if store.lost_from is None else store.lost_from
    return LogEnd(end, serial, last.store_timestamp if last is not None else -1)


def _position_of_apache(store: MessageStore) -> TimerPosition | None:
    """Return RocketMQ 5's position in the delayed messages of this store, if there is one (``TimerCheckpoint``)."""
    try:
        content = (store.config.root / "config" / "timercheck").read_bytes()
    except OSError:
        return None
    if len(content) < _TIMER_CHECK.size:
        return None
    last_read_ms, _, serial = _TIMER_CHECK.unpack_from(content)
    return TimerPosition(serial=serial, until_ms=last_read_ms - 1) if serial > 0 else None


def _deliveries(store: MessageStore, log_offset: int) -> Iterator[tuple[int, int]]:
    """Return the due times, by serial, of messages whose delivery is in the log at or after ``log_offset``."""
    for found in store.scan(max(log_offset, store.min_physical_offset)):
        if found.topic == TIMER_TOPIC or found.sys_flag & TRANSACTION_ROLLBACK:
            continue
        data = store.record_at(found.offset, found.size)
        if data is None or _MARK not in data:
            continue
        record = decode_record(data, check_crc=False)
        due_ms = record.properties.get(TIMER_OUT_MS, "")
        if record.prepared_transaction_offset > 0 and due_ms.isdecimal():
            yield record.prepared_transaction_offset - 1, int(due_ms)
