"""Converts RocketMQ's names and times to and from protobuf (``GrpcConverter``, ``NamespaceUtil``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cometmq.message import properties as names
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
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code

BORN_HOST: Final = "__BORN_HOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

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
    names.LITE_TOPIC,
    names.INNER_MULTI_DISPATCH,
}
"""Properties that users can neither set nor receive: those of RocketMQ 4.9 and those added in version 5."""
_NANOS_OF_A_MILLISECOND: Final = 1_000_000
_MS_OF_A_SECOND: Final = 1_000
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest timestamp that protobuf libraries accept."""
_NAMESPACE_SEPARATOR: Final = "%"
_NAME_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
_NAMES_CACHED: Final = 1_024
"""Number of valid names that are not checked again."""


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
    return valid_topic(full_name(resource))


@lru_cache(_NAMES_CACHED)
def valid_topic(name: str) -> str:
    """Return a topic's name.

    :raises ProxyError: the name is invalid, or belongs to a system topic.
    """
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
    return valid_group(full_name(resource))


@lru_cache(_NAMES_CACHED)
def valid_group(name: str) -> str:
    """Return a consumer group's name.

    :raises ProxyError: the name is invalid, or belongs to a system group.
    """
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
    seconds, rest = divmod(min(max(ms, FIRST_MS), LAST_MS), _MS_OF_A_SECOND)
    return v2.Timestamp(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)


def duration(ms: int) -> v2.Duration:
    """Return a number of milliseconds as a protobuf duration."""
    seconds, rest = divmod(ms, _MS_OF_A_SECOND)
    return v2.Duration(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)


def type_of(properties: Mapping[str, str]) -> v2.MessageType:
    """Return a message's type, derived from its properties (``TopicMessageType.parseFromMessageProperty``)."""
    if properties.get(names.TRAN_MSG) == "true":
        return v2.MessageType.TRANSACTION
    if names.DELAY in properties or not names.TIMER_NAMES.isdisjoint(properties) or names.TIMER_OUT_MS in properties:
        return v2.MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return v2.MessageType.FIFO
    if names.PRIORITY in properties:
        return v2.MessageType.PRIORITY
    return v2.MessageType.LITE if names.LITE_TOPIC in properties else v2.MessageType.NORMAL
