"""Stored messages as gRPC's clients get them (``GrpcConverter``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from cometmq.java_values import parse_long
from cometmq.limits import MAX_DECOMPRESSED_BYTES
from cometmq.message import properties as names
from cometmq.message.compression import decompress
from cometmq.message.message import MessageExt
from cometmq.message.sysflag import COMPRESSED
from cometmq.proxy.names import resource_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.times import timestamp

BORN_HOST: Final = "__BORN_HOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
POP_CK: Final = "POP_CK"
_INT32_MAX: Final = 2**31 - 1
_GZIP: Final = b"\x1f\x8b"

RESERVED: Final = names.RESERVED_NAMES | {
    BORN_HOST,
    "BORN_HOST",
    BORN_TIMESTAMP,
    TRACE_CONTEXT,
    DLQ_TOPIC,
    DLQ_MESSAGE_ID,
    FIRST_POP_TIME,
    names.ORIGIN_GROUP,
    POP_CK,
    "POP_CK_OFFSET",
    "INNER_NUM",
    "INNER_BASE",
    "DUP_INFO",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES",
    "__transactionId__",
    "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_DEL_UNIQKEY",
    *names.TIMER_NAMES,
    PRIORITY,
}
"""Names that users may not set, and do not get: those of 4.9 and those that RocketMQ 5 has added."""


def type_of(properties: Mapping[str, str]) -> v2.MessageType:
    """The type of a message by its properties (``TopicMessageType.parseFromMessageProperty``)."""
    if properties.get(names.TRAN_MSG) == "true":
        return v2.MessageType.TRANSACTION
    if names.DELAY in properties or not names.TIMER_NAMES.isdisjoint(properties) or names.TIMER_OUT_MS in properties:
        return v2.MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return v2.MessageType.FIFO
    return v2.MessageType.PRIORITY if PRIORITY in properties else v2.MessageType.NORMAL


def to_proto(message: MessageExt, *, topic: str, handle: str | None = None, attempt: int | None = None) -> v2.Message:
    """The message for a client.

    :param topic: its topic as the client knows it.
    :param handle: the receipt handle of a message that was received.
    :param attempt: its delivery attempt; by its failures unless it is given.
    """
    properties = message.properties
    body = message.stored_body
    encoding = v2.Encoding.IDENTITY
    if message.sys_flag & COMPRESSED:
        if body.startswith(_GZIP):
            encoding = v2.Encoding.GZIP
        else:  # clients of gRPC know no other compression
            body = decompress(body, message.sys_flag, MAX_DECOMPRESSED_BYTES)
    system = v2.SystemProperties(
        message_id=message.msg_id,
        body_digest=v2.Digest(
            type=v2.DigestType.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        ),
        body_encoding=encoding,
        message_type=type_of(properties),
        born_timestamp=timestamp(message.born_timestamp),
        born_host=properties.get(BORN_HOST) or message.born_host,
        store_timestamp=timestamp(message.store_timestamp),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=message.reconsume_times + 1 if attempt is None else attempt,
    )
    if handle is not None:
        system.receipt_handle = handle
    _set_optional(system, properties)
    user = {name: value for name, value in properties.items() if name not in RESERVED}
    return v2.Message(topic=resource_of(topic), user_properties=user, system_properties=system, body=body)


def _set_optional(system: v2.SystemProperties, properties: Mapping[str, str]) -> None:
    tag = properties.get(names.TAGS)
    if tag is not None:
        system.tag = tag
    keys = properties.get(names.KEYS, "").rstrip(names.KEY_SEPARATOR)
    if keys:  # Java's split leaves out what is empty at the end, and only that
        system.keys.extend(keys.split(names.KEY_SEPARATOR))
    group = properties.get(names.SHARDING_KEY)
    if group is not None:
        system.message_group = group
    due_ms = _number(properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS))
    if due_ms is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due_ms))
    trace = properties.get(TRACE_CONTEXT)
    if trace is not None:
        system.trace_context = trace
    priority = _number(properties.get(PRIORITY))
    if priority is not None and 0 <= priority <= _INT32_MAX:
        system.priority = priority
    dead = properties.get(DLQ_TOPIC)
    if dead is not None:
        system.dead_letter_queue.topic = dead
        system.dead_letter_queue.message_id = properties.get(DLQ_MESSAGE_ID, "")


def _number(text: str | None) -> int | None:
    """The number of a property, which a producer of any protocol may have set to anything; ``None`` for no number."""
    with suppress(ValueError):
        return None if text is None else parse_long(text)
    return None
