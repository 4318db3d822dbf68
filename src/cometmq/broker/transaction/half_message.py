"""The records of a transaction: the half message, its copies, its end (``TransactionalMessageBridge``).

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC with its real topic and queue in its properties. An op message,
whose body is the half message's queue offset, ends it. A committed message is stored before that in the real topic,
with the half message's log offset as its prepared transaction offset. Each time that the producer is asked, a copy
replaces the half message at the end of the half queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HALF_PROPERTIES_RESERVE_BYTES, MAX_OPEN_TRANSACTIONS
from cometmq.broker.turn.inner_message import Detour, InnerMessage, index_fields, inner_message
from cometmq.broker.turn.targets import RefusedError
from cometmq.java_values import parse_long
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.ids import tags_code
from cometmq.message.layout import HOSTS_V6
from cometmq.message.names import RETRY_PREFIX, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    WAIT,
    PropertiesText,
    join_properties,
)
from cometmq.message.record import StoredRecord, encode_record
from cometmq.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    with_transaction,
)
from cometmq.remoting.codes import ResponseCode

HALF_QUEUE: Final = 0
"""All half messages are in one queue, and all op messages too."""

_NOT_OF_A_HALF: Final = frozenset(
    {
        DELAY,
        TIMER_DELAY_SEC,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        REAL_TOPIC,
        REAL_QID,
        TRANSACTION_CHECK_TIMES,
        TRAN_PREPARED_QUEUE_OFFSET,
    }
)
"""Properties of a producer that mean nothing for a half message, and would mislead its checks."""

_NUMBER_CHARS: Final = 19
"""A number with this many digits is no broker's."""
_MAX_IMMUNITY_SECONDS: Final = 10**9

OP_PROPERTIES: Final = join_properties({TAGS: "d", WAIT: "true"})

OP_TAGS_CODE: Final = tags_code("d")


def room_for_halves(open_now: int) -> int:
    """The number of half messages that may be stored while so many transactions are open."""
    return max(MAX_OPEN_TRANSACTIONS - open_now, 0)


def half_detour(live: LiveConfig, open_now: Callable[[], int]) -> Detour:
    """Parks messages with TRAN_MSG as half messages, as long as ``rejectTransactionMessage`` is off.

    :param open_now: gives the number of open transactions, which is limited.
    """

    def detour(message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage | None:
        if wanted.get(TRAN_MSG, "").lower() != "true" or message.topic.startswith(RETRY_PREFIX):
            return None
        config = live.current
        if config.reject_transaction_message:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] sending transaction message is forbidden",
            )
        if not room_for_halves(open_now()):
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_OPEN_TRANSACTIONS} transactions are open already; find the producers that end none",
            )
        return _half(message, wanted)

    return detour


def _half(message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage:
    wait = wanted.get(WAIT)
    text = _with(
        message.properties,
        _NOT_OF_A_HALF,
        {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id), **({WAIT: wait} if wait else {})},
    )
    if len(text.encode()) > MAX_PROPERTIES_BYTES - HALF_PROPERTIES_RESERVE_BYTES:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, the properties of a half message have at most "
            f"{MAX_PROPERTIES_BYTES - HALF_PROPERTIES_RESERVE_BYTES} bytes, with REAL_TOPIC and REAL_QID.",
        )
    return msgspec.structs.replace(
        message,
        topic=TRANS_HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=text,
        sys_flag=with_transaction(message.sys_flag, TRANSACTION_NOT),
    )


def committed(half: StoredRecord) -> InnerMessage:
    """The message that a half message becomes when it is committed.

    :raises ValueError: the half message names no queue.
    """
    topic, queue_id = real_queue(half)
    text = half.properties_text
    if TRAN_PREPARED_QUEUE_OFFSET in text:
        text = _with(text, frozenset({TRAN_PREPARED_QUEUE_OFFSET}), {})
    tags, keys = index_fields(half.properties)
    return msgspec.structs.replace(
        inner_message(half),
        topic=topic,
        queue_id=queue_id,
        properties=text,
        sys_flag=with_transaction(half.sys_flag, TRANSACTION_COMMIT),
        prepared_transaction_offset=half.physical_offset,
        tags_code=tags,
        index_keys=keys,
    )


def op_message(half_offset: int, store_host: bytes, now_ms: int) -> InnerMessage:
    """The op message that ends the half message at ``half_offset`` of the half queue."""
    return InnerMessage(
        TRANS_OP_HALF_TOPIC,
        HALF_QUEUE,
        b"%d" % half_offset,
        OP_PROPERTIES,
        0,
        0,
        now_ms,
        store_host,
        tags_code=OP_TAGS_CODE,
        index_keys=(),
    )


def op_offsets(body: bytes | memoryview) -> Iterator[int]:
    """The half queue offsets that an op message names: one, or several in those of RocketMQ 5."""
    for piece in bytes(body).split(b","):
        if piece.isdigit() and len(piece) < _NUMBER_CHARS:
            yield int(piece)


def put_back(half: StoredRecord, first_offset: int, check_times: int) -> InnerMessage:
    """The copy that replaces a half message, whose first one was at ``first_offset``."""
    return msgspec.structs.replace(
        inner_message(half),
        properties=_with(
            half.properties_text,
            frozenset({TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET}),
            {
                **({TRANSACTION_CHECK_TIMES: str(check_times)} if check_times else {}),
                TRAN_PREPARED_QUEUE_OFFSET: str(first_offset),
            },
        ),
    )


def given_up(half: StoredRecord) -> InnerMessage:
    """A half message as it is stored in TRANS_CHECK_MAX_TIME_TOPIC, for people to look at."""
    return msgspec.structs.replace(inner_message(half), topic=TRANS_CHECK_MAX_TIME_TOPIC)


def resumed(record: StoredRecord) -> InnerMessage:
    """A message that was given up, as a half message again with no checks counted."""
    return msgspec.structs.replace(
        inner_message(record),
        topic=TRANS_HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=_with(
            record.properties_text,
            frozenset({TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET}),
            {TRANSACTION_CHECK_TIMES: "0"},
        ),
    )


def check_body(half: StoredRecord) -> bytes:
    """The record sent to a producer with the question, with its real topic and queue.

    :raises ValueError: the half message names no queue.
    """
    topic, queue_id = real_queue(half)
    return encode_record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=half.queue_offset,
        physical_offset=half.physical_offset,
        body=half.body,
        properties_text=half.properties_text,
        flag=half.flag,
        sys_flag=half.sys_flag & ~HOSTS_V6,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_timestamp=half.store_timestamp,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.prepared_transaction_offset,
    )


def real_queue(half: StoredRecord) -> tuple[str, int]:
    """The topic and queue that a half message was sent to.

    :raises ValueError: it names none.
    """
    topic = half.properties.get(REAL_TOPIC, "")
    queue_id = _number(half, REAL_QID)
    if not topic or queue_id is None:
        raise ValueError(f"the half message at {half.queue_offset} names no topic and queue")
    return topic, queue_id


def first_offset(half: StoredRecord) -> int:
    """The queue offset that a half message had before it was put back for the first time."""
    first = _number(half, TRAN_PREPARED_QUEUE_OFFSET)
    return half.queue_offset if first is None else first


def check_times(half: StoredRecord) -> int:
    """The number of times that the producer was asked."""
    return _number(half, TRANSACTION_CHECK_TIMES) or 0


def immunity_ms(half: StoredRecord) -> int | None:
    """The age before which its producer is not asked, if the message says one."""
    seconds = _number(half, CHECK_IMMUNITY_TIME_IN_SECONDS)
    return seconds * 1000 if seconds is not None and seconds < _MAX_IMMUNITY_SECONDS else None


def _number(half: StoredRecord, name: str) -> int | None:
    """The value of a property that is a number from 0 on; ``None`` for all other values."""
    with suppress(ValueError):
        number = parse_long(half.properties.get(name, ""))
        return number if number >= 0 else None
    return None


def _with(text: str, without: frozenset[str], added: Mapping[str, str]) -> str:
    """The properties' text with some left out and others put at its end."""
    return PropertiesText(text).without(without).plus(added).text
