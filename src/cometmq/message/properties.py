"""Message properties: their names and stored form, and the message type.

Text form (``MessageDecoder``): ``name 0x01 value 0x02 name 0x01 value 0x02 …``; the last 0x02 may be
missing. Readers drop a property with an empty name or value; a value
may contain 0x01.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from cometmq.java_values import parse_int

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
POP_CK: Final = "POP_CK"
"""The receipt handle of a popped message."""
FIRST_POP_TIME: Final = "1ST_POP_TIME"
"""The time at which the message was first popped, in milliseconds since 1970."""
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
"""The group to which a message in a POP retry topic is redelivered."""
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
SHARDING_KEY: Final = "__SHARDINGKEY"
"""The key by which the queue was selected, which 5.x calls the message group."""
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""The message's priority, a whole number; a larger number is more urgent."""
NO_PRIORITY: Final = -1
PRIORITY_MAX: Final = 2**31 - 1
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_NAMES: Final = frozenset({TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})
"""The properties that set an arbitrary delay; a message has one of them."""
PRODUCER_SEQUENCE: Final = "PRODUCER_SEQUENCE"
"""CometMQ's own property, which contains the producer and its message numbers."""
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""The queues of lite topics that have the message, separated by commas."""
TTL_MS: Final = "COMETMQ_TTL_MS"
"""The life time of a message in milliseconds, which its producer sets."""
EXPIRES_MS: Final = "COMETMQ_EXPIRES_MS"
"""The end of a message's life in milliseconds since 1970, which the broker sets."""
DEAD_REASON: Final = "COMETMQ_DEAD_REASON"
"""The reason why a message is a dead letter, if it is not the number of its failures."""
EXPIRED: Final = "expired"
"""The value of :data:`DEAD_REASON` for a message whose life had ended."""
EXPIRED_FROM: Final = "COMETMQ_EXPIRED_FROM"
"""The log offset of the expired message from which a dead letter was made."""
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
"""The message's offsets in these queues."""
LITE_TOPIC: Final = "__LITE_TOPIC"
"""The lite topic to which the message is sent."""
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""The number of times that the half message has been checked."""
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""The original queue offset of a half message that was rewritten."""
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""The time before a half message is first checked, in seconds."""

KEY_SEPARATOR: Final = " "
"""The separator between index keys in KEYS."""

RESERVED_NAMES: Final = frozenset(
    [
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_QUEUE_OFFSET",
        PRIORITY,
    ]
)
"""``MessageConst.STRING_HASH_SET``: property names that users may not set."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode properties, leaving out those with an empty name or value, which readers would drop.

    :raises ValueError: a name contains 0x01 or 0x02, or a value contains 0x02, so that the text could not
        be read back.
    """
    pieces = []
    for name, value in properties.items():
        if not name or not value:
            continue
        if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name or PROPERTY_SEPARATOR in value:
            raise ValueError(f"property {name!r} contains a separator (0x01 or 0x02)")
        pieces.append(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")
    return "".join(pieces)


def join_properties(properties: Mapping[str, str]) -> str:
    """Encode the properties from :func:`decode_properties` like Apache's broker, with no separator at the end."""
    return PROPERTY_SEPARATOR.join([f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Decode properties; if a name occurs more than once, the last value counts."""
    properties = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def read_priority(text: str | None) -> int:
    """Return the priority in a property's value, or -1 if the value is no priority (``Message.getPriority``)."""
    try:
        number = NO_PRIORITY if text is None else parse_int(text)
    except ValueError:
        return NO_PRIORITY
    return number if 0 <= number <= PRIORITY_MAX else NO_PRIORITY


def property_mark(name: str) -> str:
    """Return the bytes that precede a property's value."""
    return name + NAME_VALUE_SEPARATOR


class PropertiesText(msgspec.Struct, frozen=True, gc=False):
    """Encoded properties that can be read and changed without decoding them."""

    text: str

    def __contains__(self, name: str) -> bool:
        mark = property_mark(name)
        return self.text.startswith(mark) or PROPERTY_SEPARATOR + mark in self.text

    def get(self, name: str) -> str:
        """Return the last value of a property, or an empty string if the property is missing."""
        mark = property_mark(name)
        at = self.text.rfind(PROPERTY_SEPARATOR + mark)
        if at < 0 and not self.text.startswith(mark):
            return ""
        return self.text[at + 1 + len(mark) :].partition(PROPERTY_SEPARATOR)[0]

    def without(self, names: Container[str]) -> PropertiesText:
        """Return the text without the given properties and without empty properties."""
        pieces = self.text.split(PROPERTY_SEPARATOR)
        kept = [piece for piece in pieces if piece and piece.partition(NAME_VALUE_SEPARATOR)[0] not in names]
        return PropertiesText(PROPERTY_SEPARATOR.join(kept))

    def plus(self, properties: Mapping[str, str]) -> PropertiesText:
        """Return the text with properties appended and no separator at the end."""
        text, more = self.text.removesuffix(PROPERTY_SEPARATOR), join_properties(properties)
        return PropertiesText(f"{text}{PROPERTY_SEPARATOR}{more}" if text and more else text or more)


_DELAYS: Final = TIMER_NAMES | {DELAY}


class MessageType(IntEnum):
    """The types of messages, with the numbers used in traces (``MessageType``)."""

    NORMAL = 0
    TRANS_HALF = 1
    TRANS_COMMIT = 2
    DELAY = 3


def message_type(properties: Mapping[str, str]) -> MessageType:
    """Return a message's type according to its properties."""
    if properties.get(TRAN_MSG) == "true":
        return MessageType.TRANS_HALF
    return MessageType.NORMAL if _DELAYS.isdisjoint(properties) else MessageType.DELAY
