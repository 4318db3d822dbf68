"""Texts of POP: receipt handles, infos of answers, and names of retry topics (``ExtraInfoUtil``, ``KeyBuilder``).

A receipt handle (property POP_CK, field extraInfo) has eight parts, with a blank between them::

    startOffset popTime invisibleTime reviveQueueId topicType brokerName queueId queueOffset

The handles of RocketMQ 5's proxy have a ninth part or more, which are not read. A blank in the name of the broker is
the character U+001F in a handle, so that it has eight parts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in handles of ordered pops (``KeyBuilder.POP_ORDER_REVIVE_QUEUE``)."""
NORMAL_TOPIC: Final = "0"
RETRY_TOPIC_V1: Final = "1"
RETRY_TOPIC_V2: Final = "2"

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_PARTS: Final = 8
_BLANK_IN_NAME: Final = "\x1f"


class HandleError(CometMQError):
    """A text is no receipt handle."""


class ReceiptHandle(NamedTuple):
    """The parts of a receipt handle; times are in milliseconds."""

    start_offset: int
    pop_time: int
    """Milliseconds since 1970."""
    invisible_time: int
    revive_queue: int
    topic_type: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def in_order(self) -> bool:
        """The message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        """The text."""
        name = self.broker_name.replace(" ", _BLANK_IN_NAME)
        return " ".join(map(str, self._replace(broker_name=name)))


def parse_handle(text: str) -> ReceiptHandle:
    """Read a receipt handle.

    :raises HandleError: it has too few parts, or a part that should be a number is none.
    """
    parts = text.split(" ")
    if len(parts) < _PARTS:
        raise HandleError(f"a receipt handle has {_PARTS} parts, not {len(parts)}")
    start, popped, invisible, revive, topic_type, broker, queue_id, offset = parts[:_PARTS]
    for number in (start, popped, invisible, revive, queue_id, offset):
        if _NUMBER.fullmatch(number) is None:
            raise HandleError(f"a part of the receipt handle is no number: {number[:20]!r}")
    return ReceiptHandle(
        *(int(start), int(popped), int(invisible), int(revive), topic_type),
        *(broker.replace(_BLANK_IN_NAME, " "), int(queue_id), int(offset)),
    )


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """The topic of messages that a group gets again: ``%RETRY%group_topic``, or ``%RETRY%group+topic``."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def is_retry_of(topic: str, group: str) -> bool:
    """Tell whether a topic can be a retry topic of a group: its own, or one of POP."""
    own = RETRY_PREFIX + group
    return topic == own or topic.startswith((own + "_", own + "+"))


def original_topic(topic: str, group: str) -> str:
    """The topic that messages of a retry topic of POP were sent to; any other topic stays as it is."""
    own = RETRY_PREFIX + group
    return topic[len(own) + 1 :] if topic.startswith((own + "_", own + "+")) else topic


def topic_type(topic: str, group: str) -> str:
    """The type of a topic in handles and infos (``ExtraInfoUtil.getRetry``)."""
    if topic.startswith(f"{RETRY_PREFIX}{group}+"):
        return RETRY_TOPIC_V2
    return RETRY_TOPIC_V1 if topic.startswith(RETRY_PREFIX) else NORMAL_TOPIC


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic that a message of a type was popped from (``ExtraInfoUtil.getRealTopic``)."""
    if kind == RETRY_TOPIC_V1:
        return pop_retry_topic(topic, group)
    return pop_retry_topic(topic, group, v2=True) if kind == RETRY_TOPIC_V2 else topic


def start_info(kind: str, queue_id: int, start: int) -> str:
    """One part of startOffsetInfo."""
    return f"{kind} {queue_id} {start}"


def offset_info(kind: str, queue_id: int, offsets: list[int]) -> str:
    """One part of msgOffsetInfo."""
    return f"{kind} {queue_id} {','.join(map(str, offsets))}"


def read_offset_info(info: str) -> dict[tuple[str, int], list[int]]:
    """Read msgOffsetInfo: the offsets by topic type and queue.

    :raises HandleError: it has another form.
    """
    found: dict[tuple[str, int], list[int]] = {}
    try:
        for part in filter(None, info.split(";")):
            kind, queue_id, offsets = part.split(" ")
            found.setdefault((kind, int(queue_id)), []).extend(map(int, offsets.split(",")))
    except ValueError:
        raise HandleError(f"{info[:100]!r} is no msgOffsetInfo") from None
    return found
