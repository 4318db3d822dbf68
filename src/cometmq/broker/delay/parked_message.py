"""Parked messages, which are stored under another topic until they are due (``HookUtils``, ``messageTimeup``; hot
path).

A parked message has its own topic and queue in REAL_TOPIC and REAL_QID. Delivery changes only the topic, the queue, the
offsets, the store time and the store host, and sets the prepared transaction offset to 0. The properties, including
DELAY, REAL_TOPIC and REAL_QID, remain unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.due import IN_LOG, Waiting
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.broker.turn.targets import RefusedError
from cometmq.java_values import parse_long
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.ids import RecallHandle
from cometmq.message.names import RETRY_PREFIX, TIMER_TOPIC, TRANS_HALF_TOPIC, check_topic
from cometmq.message.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    PropertiesText,
    decode_properties,
)
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.remoting.codes import ResponseCode
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue.consume_queue import MAX_QUEUE_ID
from cometmq.store.timer.log import TimerLog

_log = logging.getLogger(__name__)

_INT: Final = range(-(2**31), 2**31)
_SHOWN_CHARS: Final = 64
"""Maximum length of an invalid value in an error message."""
_WAIT_PROPERTIES: Final = (REAL_TOPIC, REAL_QID, TIMER_OUT_MS, TIMER_DEL_UNIQKEY)
"""Delay properties whose earlier values are removed when a message is parked again."""


def delay_level(text: str) -> int:
    """Return the level in a DELAY property, parsed as in Java; levels of 0 and below mean no delay.

    :raises RefusedError: the text is not a 32-bit number.
    """
    with suppress(ValueError):
        if (level := parse_long(text)) in _INT:
            return level
    raise RefusedError(
        ResponseCode.SYSTEM_ERROR, f'java.lang.NumberFormatException: For input string: "{text[:_SHOWN_CHARS]}"'
    )


class NotDeliverableError(Exception):
    """Raised when a parked record has no valid topic and queue for its delivery."""


class TimerDetour:
    """Parks messages that have an arbitrary delay or due time in ``rmq_sys_wheel_timer``
    (``HookUtils.handleScheduleMessage``).

    TIMER_DELAY_SEC has precedence over TIMER_DELAY_MS, and TIMER_DELAY_MS over TIMER_DELIVER_MS; a DELAY level above 0
    has precedence over all of them. A message that is already due is stored in its own topic immediately.
    """

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._clock = broker.clock
        self._traffic = broker.stats.traffic

    def __call__(self, message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage | None:
        """Return the parked message, or ``None`` if the message has no delay.

        :raises RefusedError: a level or delay is too long or not a number, or arbitrary delays are disabled.
        """
        name = next((name for name in (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS) if name in wanted), None)
        if name is None or (DELAY in wanted and delay_level(wanted[DELAY]) > 0):
            return None
        text = PropertiesText(message.properties)
        if TIMER_OUT_MS in text:
            return None  # the message has already waited; it is being delivered or sent again
        config = self._live.current
        if not config.timer_wheel_enable:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        now_ms = self._clock.now_ms()
        due_ms = _number(name, wanted[name])
        if name == TIMER_DELAY_SEC:
            due_ms = now_ms + due_ms * 1000
        elif name == TIMER_DELAY_MS:
            due_ms += now_ms
        max_ms = config.timer_max_delay_sec * 1000
        is_recall = TIMER_DEL_UNIQKEY in text
        if due_ms <= now_ms and not is_recall:
            return None
        if not now_ms < due_ms <= now_ms + max_ms:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; "
                "or if set del msg, the delay time should be bigger than the current time",
            )
        if self._traffic is not None and not is_recall:
            self._traffic.delayed(message.topic, due_ms - now_ms)
        return parked(message, due_ms)


def parked(message: InnerMessage, due_ms: int) -> InnerMessage:
    """Return a copy of the message for the timer topic, where it waits until ``due_ms``."""
    place = {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id), TIMER_OUT_MS: str(due_ms)}
    text = PropertiesText(message.properties).plus(place).text
    return msgspec.structs.replace(message, topic=TIMER_TOPIC, queue_id=0, properties=text)


def _number(name: str, text: str) -> int:
    try:
        return parse_long(text)
    except ValueError:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, {name} must be a whole number, not {text[:_SHOWN_CHARS]!r}",
        ) from None


def delivered(record: StoredRecord) -> InnerMessage | None:
    """Return the message to deliver for a parked record, or ``None`` for a half message.

    :raises NotDeliverableError: REAL_TOPIC or REAL_QID is missing or invalid.
    """
    text = PropertiesText(record.properties_text)
    topic = text.get(REAL_TOPIC)
    queue_id = text.get(REAL_QID)
    wrong = check_topic(topic)
    if wrong is not None:
        raise NotDeliverableError(f"REAL_TOPIC: {wrong}")
    if not queue_id.isdecimal() or len(queue_id) > len(str(MAX_QUEUE_ID)) or int(queue_id) > MAX_QUEUE_ID:
        raise NotDeliverableError(f"invalid queue ID {queue_id[:20]!r}")
    if topic == TRANS_HALF_TOPIC:
        return None
    return InnerMessage(
        topic,
        int(queue_id),
        record.body,
        record.properties_text,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
    )


def to_timer_message(message: InnerMessage, due_ms: int) -> InnerMessage:
    """Convert a delay level's message to one parked in the timer; return it unchanged if its properties are too large.

    :param message: the message in the form in which it would be delivered.
    """
    text = PropertiesText(message.properties).without(_WAIT_PROPERTIES).text
    waits = parked(msgspec.structs.replace(message, properties=text), due_ms)
    return waits if len(waits.properties.encode()) <= MAX_PROPERTIES_BYTES else message


def recall_handle(message: InnerMessage, broker_name: str) -> str | None:
    """Return the handle for recalling a parked message, or ``None`` if it cannot be recalled."""
    if message.topic != TIMER_TOPIC:
        return None
    properties = decode_properties(message.properties)
    unique_key = properties.get(UNIQ_KEY)
    topic = properties[REAL_TOPIC]
    if unique_key is None or topic.startswith(RETRY_PREFIX) or " " in unique_key:
        return None
    return RecallHandle(topic, broker_name, int(properties[TIMER_OUT_MS]), unique_key).encode()


def message_of(waiting: Waiting, timer_log: TimerLog, queue: ConsumeQueue, store: MessageStore) -> InnerMessage | None:
    """Read a delayed message; if it cannot be delivered, log an error and return ``None``.

    :param queue: the queue of ``rmq_sys_wheel_timer``.
    """
    try:
        message = delivered(decode_record(_record(waiting, timer_log, queue, store), check_crc=False))
    except (RecordError, NotDeliverableError) as error:
        _log.error("delayed message %d cannot be delivered and is lost: %s", waiting.serial, error)
        return None
    if message is None:
        return None
    sys_flag = message.sys_flag & ~TRANSACTION_ROLLBACK
    return msgspec.structs.replace(message, sys_flag=sys_flag, prepared_transaction_offset=waiting.serial + 1)


def _record(waiting: Waiting, timer_log: TimerLog, queue: ConsumeQueue, store: MessageStore) -> bytes | memoryview:
    """Return a delayed message's record from the timer log, or, if that is damaged, from the commit log.

    :raises RecordError: the record is damaged or missing in both logs.
    """
    record: bytes | memoryview | None
    if waiting.crc == IN_LOG:
        record = store.view(waiting.place, waiting.size)
    else:
        record = timer_log.record(waiting.due_ms, waiting.place, waiting.size, waiting.crc)
        if record is None:
            _log.error("delayed message %d is damaged in the timer log; reading the commit log instead", waiting.serial)
            unit = queue.unit(waiting.serial)
            record = store.record_at(unit[0], unit[1]) if unit is not None else None
    if record is None:
        raise RecordError("its record is damaged or missing in the timer log, and no longer in the commit log")
    return record
