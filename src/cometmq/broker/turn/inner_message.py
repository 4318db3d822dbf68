"""A message as stored by the broker (``MessageExtBrokerInner``), and its parsed properties (hot path).

A client's send is stored directly from its request (:mod:`cometmq.broker.send.send_message`). Messages that the broker
stores itself become an ``InnerMessage``: delayed messages when they are parked and when they are delivered, half and op
messages, retries and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.message.ids import tags_code
from cometmq.message.properties import (
    CLUSTER,
    DELAY,
    EXPIRES_MS,
    KEYS,
    LITE_TOPIC,
    NAME_VALUE_SEPARATOR,
    NO_PRIORITY,
    PRIORITY,
    PROPERTY_SEPARATOR,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TTL_MS,
    UNIQ_KEY,
    WAIT,
    PropertiesText,
    read_priority,
)
from cometmq.message.record import StoredRecord

DETOURS: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG})
"""Properties that cause a message to be parked: stored in a system topic until it is due."""
_LIFE: Final = frozenset({TTL_MS, EXPIRES_MS})
"""Properties of a message's life time."""
_RARE: Final = DETOURS | _LIFE | {LITE_TOPIC, PRIORITY}
"""Properties that few messages have."""
_RECONSUME_TIMES_MAX: Final = 2**31 - 1
"""Largest value of the ``reconsumeTimes`` field in a record."""
_DROPPED: Final = frozenset({WAIT, CLUSTER, ""})
"""Names of properties that are dropped or replaced before a message is stored."""


class InnerMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to be stored; offsets, store time and store host are set when it is stored."""

    topic: str
    queue_id: int
    body: bytes
    """The body as stored, which is compressed if ``sys_flag`` says so."""
    properties: str
    """The text of the properties, stored unchanged."""
    flag: int
    sys_flag: int
    """The flags, except the bits for the hosts, which are set when the message is stored."""
    born_timestamp: int
    """Born time by the producer's clock, in milliseconds since 1970."""
    born_host: bytes
    """Address of the producer, 8 or 20 bytes."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    index_keys: tuple[str, ...] | None = None
    """Index keys as in :class:`SendProperties`, or ``None`` if the properties still need to be parsed."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The log offset and queue offset of a message (0 for records without a queue)."""

    physical_offset: int
    queue_offset: int


Detour = Callable[[InnerMessage, Mapping[str, str]], InnerMessage | None]
"""A function that parks a sent message in another topic if the message's detour properties require it.

It returns the message to store in that topic, or ``None`` if no detour is needed. It raises ``RefusedError`` if the
properties are invalid.
"""


def inner_message(record: StoredRecord) -> InnerMessage:
    """Convert a stored record to a message to be stored again."""
    return InnerMessage(
        record.topic,
        record.queue_id,
        record.body,
        record.properties_text,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def next_attempt(record: StoredRecord, topic: str, *, queue_id: int, properties: str) -> InnerMessage:
    """Return the copy of a failed message that is stored for a retry or as a dead letter."""
    return msgspec.structs.replace(
        inner_message(record),
        topic=topic,
        queue_id=queue_id,
        properties=properties,
        reconsume_times=min(record.reconsume_times + 1, _RECONSUME_TIMES_MAX),  # a producer may send any number
        prepared_transaction_offset=0,
    )


class SendProperties(msgspec.Struct, gc=False):
    """A message's properties, parsed and ready to be stored."""

    text: str
    tags_code: int
    index_keys: tuple[str, ...]
    """Index keys: the unique key and each key in KEYS."""
    wait: bool
    """True if the response waits for the flush (WAIT is not ``false``)."""
    detour: dict[str, str] | None
    """The message's properties that are in ``DETOURS``, its lite topic, and its WAIT property; ``None`` if it is not
    parked and has no lite topic."""
    priority: int = NO_PRIORITY
    """The message's priority, or -1 if it has none."""
    life: dict[str, str] | None = None
    """The properties of the message's life time; ``None`` if it has none."""


def read_properties(text: str, tail: str) -> SendProperties:
    """Parse a message's properties in one pass; remove WAIT from their text and append ``tail`` (CLUSTER).

    If a name occurs twice, the last value counts, as in RocketMQ. Empty properties are dropped. The priority of a
    message with a message group is dropped, as in Apache's broker, since the group determines the queue.
    """
    keys = unique = tag = wait = wait_piece = ""
    untidy = False
    rare: dict[str, str] | None = None
    separator, name_end = PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR
    pieces = text.split(separator)
    if not pieces[-1]:
        pieces.pop()  # after the final separator, which Java and Spark's sink write
    for piece in pieces:
        name, _, value = piece.partition(name_end)
        if name == KEYS:
            keys = value or keys
        elif name == UNIQ_KEY:
            unique = value or unique
        elif name == TAGS:
            tag = value or tag
        elif name == WAIT:
            untidy = untidy or wait_piece != ""
            wait = value or wait
            wait_piece = piece
        elif name in _RARE:
            if value:
                rare = rare or {}
                rare[name] = value
        elif name in _DROPPED:
            untidy = True
    dropped, level = _DROPPED, NO_PRIORITY
    if rare is not None and PRIORITY in rare:
        level = read_priority(rare[PRIORITY])
        if level != NO_PRIORITY and PropertiesText(text).get(SHARDING_KEY):
            untidy, dropped, level = True, _DROPPED | {PRIORITY}, NO_PRIORITY
    if untidy:
        pieces = [piece for piece in pieces if piece.partition(NAME_VALUE_SEPARATOR)[0] not in dropped]
    elif wait_piece:
        pieces.remove(wait_piece)
    pieces.append(tail)
    index_keys: tuple[str, ...]
    if not keys:
        index_keys = (unique,) if unique else ()
    elif " " in keys:
        index_keys = tuple([key for key in (unique, *keys.split(" ")) if key])
    else:
        index_keys = (unique, keys) if unique else (keys,)
    return SendProperties(
        separator.join(pieces),
        tags_code(tag) if tag else 0,
        index_keys,
        wait != "false",
        None if rare is None else _detour(rare, wait),
        level,
        None if rare is None else {name: rare[name] for name in _LIFE & rare.keys()} or None,
    )


def _detour(rare: Mapping[str, str], wait: str) -> dict[str, str] | None:
    """Return the detour properties and the lite topic among those that few messages have, with WAIT."""
    detour = {name: value for name, value in rare.items() if name in DETOURS or name == LITE_TOPIC}
    if detour and wait:
        detour[WAIT] = wait
    return detour or None


def index_fields(properties: Mapping[str, str]) -> tuple[int, tuple[str, ...]]:
    """Return the tags code and the index keys from decoded properties, like :func:`read_properties`."""
    unique = properties.get(UNIQ_KEY)
    keys = properties.get(KEYS)
    index_keys: tuple[str, ...] = (unique,) if unique else ()
    if keys:
        index_keys += tuple([key for key in keys.split(" ") if key])
    tag = properties.get(TAGS)
    return tags_code(tag) if tag else 0, index_keys
