"""The records of a transaction: the half message, its copies and the op message (``TransactionalMessageBridge``).

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC with its real topic and queue in its properties. An op message, whose
body is the half message's queue offset, ends the transaction. On commit, the message is first stored in the real topic,
with the half message's log offset as its prepared transaction offset. Each time the producer is asked, a new copy at
the end of the half queue replaces the half message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HALF_PROPERTIES_RESERVE_BYTES, MAX_OPEN_TRANSACTIONS
from cometmq.broker.transaction.open_pages import Transaction
from cometmq.broker.turn.inner_message import Detour, InnerMessage, index_fields, inner_message
from cometmq.broker.turn.life_time import begin_again
from cometmq.broker.turn.targets import RefusedError
from cometmq.java_values import parse_long
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.ids import tags_code
from cometmq.message.layout import HOSTS_V6
from cometmq.message.names import RETRY_PREFIX, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    PGROUP,
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
"""The queue ID of half messages and op messages, whose topics have one queue each."""

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
"""Producer properties removed from a half message because they would interfere with its checks."""

_NUMBER_CHARS: Final = 19
"""Maximum length of a number that a broker writes into a property."""
_MAX_IMMUNITY_SECONDS: Final = 10**9

OP_PROPERTIES: Final = join_properties({TAGS: "d", WAIT: "true"})

OP_TAGS_CODE: Final = tags_code("d")


def room_for_halves(open_now: int) -> int:
    """Return how many more half messages may be stored if ``open_now`` transactions are open."""
    return max(MAX_OPEN_TRANSACTIONS - open_now, 0)


def half_detour(live: LiveConfig, open_now: Callable[[], int]) -> Detour:
    """Return the detour that parks half messages.

    :param open_now: returns the number of open transactions.
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
                f"{MAX_OPEN_TRANSACTIONS} transactions are already open; find the producers that never commit or roll "
                "back",
            )
        return _to_half(message, wanted)

    return detour


def _to_half(message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage:
    wait = wanted.get(WAIT)
    text = _with_properties(
        message.properties,
        _NOT_OF_A_HALF,
        {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id), **({WAIT: wait} if wait else {})},
    )
    if len(text.encode()) > MAX_PROPERTIES_BYTES - HALF_PROPERTIES_RESERVE_BYTES:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: the properties of a half message, with REAL_TOPIC and REAL_QID, may have at most "
            f"{MAX_PROPERTIES_BYTES - HALF_PROPERTIES_RESERVE_BYTES} bytes",
        )
    return msgspec.structs.replace(
        message,
        topic=TRANS_HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=text,
        sys_flag=with_transaction(message.sys_flag, TRANSACTION_NOT),
    )


def to_committed(half: StoredRecord, now_ms: int) -> InnerMessage:
    """Return the message to store in the real topic when a half message is committed, and its life begins.

    :raises ValueError: the half message lacks its topic or queue.
    """
    topic, queue_id = real_queue(half)
    text = begin_again(half.properties_text, now_ms)
    if TRAN_PREPARED_QUEUE_OFFSET in text:
        text = _with_properties(text, frozenset({TRAN_PREPARED_QUEUE_OFFSET}), {})
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
    """Return the op message that ends the half message at offset ``half_offset`` of the half queue."""
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
    """Return the half queue offsets in an op message, which may be several if RocketMQ 5 wrote it."""
    for piece in bytes(body).split(b","):
        if piece.isdigit() and len(piece) < _NUMBER_CHARS:
            yield int(piece)


def to_copy(half: StoredRecord, first_offset: int, check_times: int) -> InnerMessage:
    """Return a copy that replaces a half message; ``first_offset`` is the offset of the transaction's first half
    message.
    """
    return msgspec.structs.replace(
        inner_message(half),
        properties=_with_properties(
            half.properties_text,
            frozenset({TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET}),
            {
                **({TRANSACTION_CHECK_TIMES: str(check_times)} if check_times else {}),
                TRAN_PREPARED_QUEUE_OFFSET: str(first_offset),
            },
        ),
    )


def to_given_up(half: StoredRecord) -> InnerMessage:
    """Return the copy of a half message for TRANS_CHECK_MAX_TIME_TOPIC."""
    return msgspec.structs.replace(inner_message(half), topic=TRANS_CHECK_MAX_TIME_TOPIC)


def to_resumed(record: StoredRecord) -> InnerMessage:
    """Return the half message, with a check count of 0, that resumes a message that was given up."""
    return msgspec.structs.replace(
        inner_message(record),
        topic=TRANS_HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=_with_properties(
            record.properties_text,
            frozenset({TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET}),
            {TRANSACTION_CHECK_TIMES: "0"},
        ),
    )


def check_body(half: StoredRecord) -> bytes:
    """Return the record that a transaction check sends to the producer, with its real topic and queue.

    :raises ValueError: the half message lacks its topic or queue.
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
    """Return the real topic and queue of a half message.

    :raises ValueError: the half message lacks its topic or queue.
    """
    topic = half.properties.get(REAL_TOPIC, "")
    queue_id = _parse_number(half, REAL_QID)
    if not topic or queue_id is None:
        raise ValueError(f"the half message at offset {half.queue_offset} lacks its topic or queue")
    return topic, queue_id


class HalfFields(Protocol):
    """The fields of a half message that describe its transaction."""

    @property
    def queue_offset(self) -> int:
        """The half queue offset."""

    @property
    def born_timestamp(self) -> int:
        """The producer's time, in milliseconds since 1970."""

    @property
    def store_timestamp(self) -> int:
        """The broker's time, in milliseconds since 1970."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The decoded properties."""


def describe(half: HalfFields) -> Transaction:
    """Read a transaction from its half message."""
    checks = check_times(half)
    stored = half.store_timestamp
    return Transaction(
        first_offset(half),
        min(half.born_timestamp, stored) if checks else stored,
        stored,
        immunity_ms(half),
        checks,
        sys.intern(half.properties.get(PGROUP, "")),
    )


def first_offset(half: HalfFields) -> int:
    """Return the queue offset of the first half message of a transaction."""
    first = _parse_number(half, TRAN_PREPARED_QUEUE_OFFSET)
    return half.queue_offset if first is None else first


def check_times(half: HalfFields) -> int:
    """Return how often a half message's transaction has been checked."""
    return _parse_number(half, TRANSACTION_CHECK_TIMES) or 0


def immunity_ms(half: HalfFields) -> int | None:
    """Return a half message's minimum age for a check in milliseconds, if the message sets one."""
    seconds = _parse_number(half, CHECK_IMMUNITY_TIME_IN_SECONDS)
    return seconds * 1000 if seconds is not None and seconds < _MAX_IMMUNITY_SECONDS else None


def _parse_number(half: HalfFields, name: str) -> int | None:
    """Return the number in a property, or ``None`` if the value is not a non-negative number."""
    text = half.properties.get(name)
    if text is None:
        return None
    with suppress(ValueError):
        number = parse_long(text)
        return number if number >= 0 else None
    return None


def _with_properties(text: str, without: frozenset[str], added: Mapping[str, str]) -> str:
    """Return a properties text with some properties removed and others appended."""
    return PropertiesText(text).without(without).plus(added).text
