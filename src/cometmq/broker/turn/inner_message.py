"""A message as the broker stores it (``MessageExtBrokerInner``), and its properties read for that (hot path).

A client's send is stored straight from its request (:mod:`cometmq.broker.send.send_message`). Every message that takes
a detour becomes an ``InnerMessage``: a delayed message on its way in and out, half and op messages, retries and dead
letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.message.ids import tags_code
from cometmq.message.properties import (
    CLUSTER,
    DELAY,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from cometmq.message.record import StoredRecord

DETOURS: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG})
"""Properties that ask to park the message before its delivery."""

_DROPPED: Final = frozenset({WAIT, CLUSTER, ""})
"""Pieces with these names are not stored as they came; a piece without a name is dropped."""


class InnerMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to be stored; it gets its offsets, store time and store host then."""

    topic: str
    queue_id: int
    body: bytes
    """The body as it is stored: compressed where ``sys_flag`` says so."""
    properties: str
    """The properties' text, stored exactly as it is."""
    flag: int
    sys_flag: int
    """The bits of the hosts are not among them: they are set when the message is stored."""
    born_timestamp: int
    """Milliseconds since 1970, by the producer's clock."""
    born_host: bytes
    """8 or 20 bytes."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    index_keys: tuple[str, ...] | None = None
    """As in :class:`SendProperties`, where the properties were read before; ``None`` when they must be read."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The place of a message in the log and in its queue (0 for records without a queue)."""

    physical_offset: int
    queue_offset: int


Detour = Callable[[InnerMessage, Mapping[str, str]], InnerMessage | None]
"""Parks a sent message in another topic if its detour properties ask for that.

Returns the message to store there; ``None`` when the message takes no detour. Raises ``RefusedError`` when the
properties cannot be followed.
"""


def inner_message(record: StoredRecord) -> InnerMessage:
    """The message of a stored record, to be stored once more."""
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


class SendProperties(msgspec.Struct, gc=False):
    """The properties of one message, read and ready to be stored."""

    text: str
    tags_code: int
    index_keys: tuple[str, ...]
    """The unique key and each of KEYS, as they go into the index."""
    wait: bool
    """True when the producer waits for the flush (WAIT is not ``false``)."""
    detour: dict[str, str] | None
    """Its properties of ``DETOURS``, with WAIT if it has that; ``None`` when there is none."""


def read_properties(text: str, tail: str) -> SendProperties:
    """Read the properties of a message in one pass, and the text to store: without WAIT, with ``tail`` (CLUSTER).

    Of two properties with one name the last counts, as in RocketMQ. Empty pieces are dropped.
    """
    keys = unique = tag = wait = wait_piece = ""
    untidy = False
    detour: dict[str, str] | None = None
    separator, name_end = PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR
    pieces = text.split(separator)
    if not pieces[-1]:
        pieces.pop()  # behind the separator at the end, which Java and Spark's sink write
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
        elif name in DETOURS:
            if value:
                detour = detour or {}
                detour[name] = value
        elif name in _DROPPED:
            untidy = True
    if detour is not None and wait:
        detour[WAIT] = wait
    if untidy:
        pieces = [piece for piece in pieces if piece.partition(NAME_VALUE_SEPARATOR)[0] not in _DROPPED]
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
        detour,
    )


def index_fields(properties: Mapping[str, str]) -> tuple[int, tuple[str, ...]]:
    """The tags code and the index keys of decoded properties, as :func:`read_properties` reads them."""
    unique = properties.get(UNIQ_KEY)
    keys = properties.get(KEYS)
    index_keys: tuple[str, ...] = (unique,) if unique else ()
    if keys:
        index_keys += tuple([key for key in keys.split(" ") if key])
    tag = properties.get(TAGS)
    return tags_code(tag) if tag else 0, index_keys
