"""A message with any delay as it is stored in its own topic."""

from __future__ import annotations

import logging

import msgspec

from cometmq.broker.delay.due import IN_LOG, Waiting
from cometmq.broker.delay.parked_message import NotDeliverableError, delivered
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.message.record import RecordError, decode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.timer.log import TimerLog

_log = logging.getLogger(__name__)


def message_of(waiting: Waiting, timer_log: TimerLog, queue: ConsumeQueue, store: MessageStore) -> InnerMessage | None:
    """Read a waiting message; ``None`` (and an error in the log) when it cannot be delivered.

    :param queue: the queue of ``rmq_sys_wheel_timer``.
    """
    try:
        message = delivered(decode_record(_record(waiting, timer_log, queue, store), check_crc=False))
    except (RecordError, NotDeliverableError) as error:
        _log.error("waiting message %d cannot be delivered and is lost: %s", waiting.serial, error)
        return None
    if message is None:
        return None
    sys_flag = message.sys_flag & ~TRANSACTION_ROLLBACK
    return msgspec.structs.replace(message, sys_flag=sys_flag, prepared_transaction_offset=waiting.serial + 1)


def _record(waiting: Waiting, timer_log: TimerLog, queue: ConsumeQueue, store: MessageStore) -> bytes | memoryview:
    """The record of a waiting message, from the timer log or, if that lost it, from the log.

    :raises RecordError: it is damaged or gone.
    """
    record: bytes | memoryview | None
    if waiting.crc == IN_LOG:
        record = store.view(waiting.place, waiting.size)
    else:
        record = timer_log.record(waiting.due_ms, waiting.place, waiting.size, waiting.crc)
        if record is None:
            _log.error("waiting message %d is damaged in the timer log; looking into the log", waiting.serial)
            unit = queue.unit(waiting.serial)
            record = store.record_at(unit[0], unit[1]) if unit is not None else None
    if record is None:
        raise RecordError("its record is damaged or gone, and the log no longer has it")
    return record
