"""Opening the timer log of a store: its files, and what the CommitLog says was delivered since they were saved."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import TIMER_OUT_MS
from cometmq.message.record import decode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.store.message_store import MessageStore
from cometmq.store.timer_log import TimerLog
from cometmq.store.timer_position import Delivered

_log = logging.getLogger(__name__)

_MARK: Final = f"{TIMER_OUT_MS}\x01".encode()


def open_timer_log(store: MessageStore) -> TimerLog:
    """The timer log in ``comet/timer`` below the store's directory; what was noticed is logged."""
    timer_log = TimerLog(store.config.root / "comet" / "timer", store.disk)
    timer_log.open(store.max_physical_offset)
    for line in timer_log.findings:
        _log.warning("%s", line)
    if timer_log.exists or store.queue(TIMER_TOPIC, 0).max_offset():
        found = dict(_deliveries(store, timer_log.position.log_offset))
        timer_log.delivered = Delivered(timer_log.position, found)
    return timer_log


def _deliveries(store: MessageStore, log_offset: int) -> Iterator[tuple[int, int]]:
    """Serial and due time of the messages whose delivery stands in the log from ``log_offset`` on."""
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
