"""Converts RocketMQ's names, times and stored messages to and from protobuf (``GrpcConverter``, ``NamespaceUtil``)."""

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
from cometmq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    check_group,
    check_topic,
)
from cometmq.message.sysflag import COMPRESSED
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code

BORN_HOST: Final = "__BORN_HOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
_INT32_MAX: Final = 2**31 - 1
_GZIP_MAGIC: Final = b"\x1f\x8b"

RESERVED: Final = names.RESERVED_NAMES | {
    BORN_HOST,
    "BORN_HOST",
    BORN_TIMESTAMP,
    TRACE_CONTEXT,
    DLQ_TOPIC,
    DLQ_MESSAGE_ID,
    names.FIRST_POP_TIME,
    names.ORIGIN_GROUP,
    names.POP_CK,
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
"""Properties that users can neither set nor receive: those of RocketMQ 4.9 and those added in version 5."""
_NANOS_OF_A_MILLISECOND: Final = 1_000_000
_MS_OF_A_SECOND: Final = 1_000
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest timestamp that protobuf libraries accept."""
_NAMESPACE_SEPARATOR: Final = "%"
_NAME_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)


# --- names and times ------------------------------------------------------------------------------
def full_name(resource: v2.Resource) -> str:
    """Return a name prefixed with its namespace: ``namespace%name``."""
    name, namespace = resource.name, resource.resource_namespace
    if not namespace or not name:
        return name
    prefix = next((prefix for prefix in _NAME_PREFIXES if name.startswith(prefix)), "")
    plain = name[len(prefix) :]
    own = namespace + _NAMESPACE_SEPARATOR
    return name if plain.startswith(own) else prefix + own + plain


def resource_of(name: str) -> v2.Resource:
    """Return a name as a resource, with the namespace in a separate field."""
    prefix = next((prefix for prefix in _NAME_PREFIXES if name.startswith(prefix)), "")
    namespace, separator, plain = name[len(prefix) :].partition(_NAMESPACE_SEPARATOR)
    if not separator:
        return v2.Resource(name=name)
    return v2.Resource(name=prefix + plain, resource_namespace=namespace)


def topic_of(resource: v2.Resource) -> str:
    """Return the topic name in a request.

    :raises ProxyError: the name is invalid, or belongs to a system topic.
    """
    name = full_name(resource)
    wrong = check_topic(name)
    if wrong is not None:
        # Apache's proxy adds the name of the topic, except if it is blank.
        words = wrong.replace("topic contains", f"topic[{name}] contains").removesuffix(".")
        raise ProxyError(Code.ILLEGAL_TOPIC, words)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise ProxyError(Code.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: v2.Resource) -> str:
    """Return the consumer group name in a request.

    :raises ProxyError: the name is invalid, or belongs to a system group.
    """
    name = full_name(resource)
    wrong = check_group(name)
    if wrong is not None:
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, wrong)
    if name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX):
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def ms_of(moment: v2.Timestamp | v2.Duration) -> int:
    """Return a timestamp as milliseconds since 1970, or a duration as milliseconds."""
    return moment.seconds * _MS_OF_A_SECOND + moment.nanos // _NANOS_OF_A_MILLISECOND


def timestamp(ms: int) -> v2.Timestamp:
    """Return milliseconds since 1970 as a timestamp, limited to the range that protobuf supports."""
    seconds, rest = divmod(min(max(ms, _FIRST_MS), _LAST_MS), _MS_OF_A_SECOND)
    return v2.Timestamp(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)


def duration(ms: int) -> v2.Duration:
    """Return a number of milliseconds as a protobuf duration."""
    seconds, rest = divmod(ms, _MS_OF_A_SECOND)
    return v2.Duration(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)


# --- messages -------------------------------------------------------------------------------------
def type_of(properties: Mapping[str, str]) -> v2.MessageType:
    """Return a message's type, derived from its properties (``TopicMessageType.parseFromMessageProperty``)."""
    if properties.get(names.TRAN_MSG) == "true":
        return v2.MessageType.TRANSACTION
    if names.DELAY in properties or not names.TIMER_NAMES.isdisjoint(properties) or names.TIMER_OUT_MS in properties:
        return v2.MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return v2.MessageType.FIFO
    return v2.MessageType.PRIORITY if PRIORITY in properties else v2.MessageType.NORMAL


def to_proto(message: MessageExt, *, topic: str, handle: str | None = None, attempt: int | None = None) -> v2.Message:
    """Convert a stored message to protobuf for a client.

    :param topic: the topic of the message as the client knows it.
    :param handle: the receipt handle, if the message is delivered by a pop.
    :param attempt: the delivery attempt; by default computed from the stored retries.
    """
    properties = message.properties
    body = message.stored_body
    encoding = v2.Encoding.IDENTITY
    if message.sys_flag & COMPRESSED:
        if body.startswith(_GZIP_MAGIC):
            encoding = v2.Encoding.GZIP
        else:  # gRPC clients support only gzip
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
    if keys:  # like Java's split, drop empty parts at the end, and only there
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
    """Return the number in a property, or ``None`` if a producer set it to a text that is not a number."""
    with suppress(ValueError):
        return None if text is None else parse_long(text)
    return None
