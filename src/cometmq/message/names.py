"""Topic and group names: validation, reserved names and derived names.

Rules: ``TopicValidator``, ``MixAll``, ``TransactionalMessageUtil`` of Apache RocketMQ 4.9. Group names must follow the
same rules as topic names (Apache does not check them), because the directory of a group's retry topic contains the
group's name.
"""

from __future__ import annotations

import re
from typing import Final

from cometmq.java_values import is_blank
from cometmq.limits import MAX_GROUP_CHARS, MAX_TOPIC_CHARS

PERM_PRIORITY: Final = 8
MESSAGE_TYPE: Final = "message.type"
"""The topic attribute with the type of the topic's messages."""
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

MASTER_ID: Final = 0
"""The brokerId of a master; slaves have higher ids."""

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace for order configurations on a nameserver. A key is a topic, and its value is ``broker:queues;…``."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Topic for messages with arbitrary delays that are not due yet, as in RocketMQ 5 (``TimerMessageStore.TIMER_TOPIC``).
"""

PRODUCER_RUNS_TOPIC: Final = "rmq_sys_producer_runs"
"""Topic for the records that mark a producer's start; it has no queues."""

POP_LOG_TOPIC: Final = "rmq_sys_pop_log"
"""Topic for the log of popped messages (``broker/pop/entries.py``); it has one queue."""

EPOCHS_TOPIC: Final = "rmq_sys_failover_epochs"
"""Topic for the markers of a failover set's epochs (``broker/failover/epochs.py``); it has one queue."""

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        TIMER_TOPIC,
    }
)
"""The system topics in ``TopicValidator``; a broker adds the name of its cluster and its own name."""

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        TIMER_TOPIC,
        POP_LOG_TOPIC,
        EPOCHS_TOPIC,
    }
)
"""Topics to which no client may send."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group used by RocketMQ's own tools; it never commits offsets."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""Topic prefix that Apache's 5.x broker uses for popped messages; the cluster name follows."""
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose committed offset is the progress in the topic for popped messages."""
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group by which consumers send failed messages. Every Apache client is a member."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose committed offsets are the progress in the half and op topics."""
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""The groups that exist on every broker (``SubscriptionGroupManager.init``)."""

ALLOWED_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
"""The texts that may be names of topics and groups."""


def is_system_topic(name: str) -> bool:
    """Return whether a topic is one of RocketMQ's system topics."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Return whether a group is used only by servers or tools."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def check_topic(name: str) -> str | None:
    """Check a topic name; return RocketMQ's error message if it is invalid, or ``None`` if it is valid."""
    if is_blank(name):
        return "The specified topic is blank."
    if len(name) > MAX_TOPIC_CHARS:
        return "The specified topic is longer than topic max length."
    if ALLOWED_NAME.fullmatch(name) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def check_group(name: str) -> str | None:
    """Check a group name; return the error message of RocketMQ's clients if it is invalid, or ``None`` if it is
    valid."""
    if is_blank(name):
        return "the specified group is blank"
    if len(name) > MAX_GROUP_CHARS:
        return f"the specified group is longer than group max length {MAX_GROUP_CHARS}."
    if ALLOWED_NAME.fullmatch(name) is None:
        return f"the specified group[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def retry_topic(group: str) -> str:
    """Return ``%RETRY%<group>``, the topic for failed messages that wait for their next attempt."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return ``%DLQ%<group>``, the topic for messages that have failed too often."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return ``<cluster>_REPLY_TOPIC``, the topic for replies to requests."""
    return f"{cluster}_{REPLY_TOPIC_SUFFIX}"
