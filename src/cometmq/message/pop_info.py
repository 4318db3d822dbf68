"""The text formats of POP: receipt handles, response fields and retry topic names (``ExtraInfoUtil``, ``KeyBuilder``).

A receipt handle (property POP_CK, field extraInfo) has eight parts, separated by blanks::

    startOffset popTime invisibleTime reviveQueueId topicType brokerName queueId queueOffset

Handles from RocketMQ 5's proxy have further parts, which are ignored. In a handle, a blank in the broker's name is
replaced by the character U+001F, so that the handle still has eight parts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue id in the handles of ordered pops (``KeyBuilder.POP_ORDER_REVIVE_QUEUE``)."""
NORMAL_TOPIC: Final = "0"
RETRY_TOPIC_V1: Final = "1"
RETRY_TOPIC_V2: Final = "2"

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_HANDLE: Final = re.compile(
    " ".join([*[f"({_NUMBER.pattern})"] * 4, *["([^ ]*)"] * 2, *[f"({_NUMBER.pattern})"] * 2]) + "(?![^ ])"
)
"""A receipt handle, which further parts may follow."""
_PARTS: Final = 8
_BLANK_IN_NAME: Final = "\x1f"


class HandleError(CometMQError):
    """A receipt handle is invalid."""


class ReceiptHandle(NamedTuple):
    """The parts of a receipt handle; times are in milliseconds."""

    start_offset: int
    pop_time: int
    """The time of the pop, in milliseconds since 1970."""
    invisible_time: int
    revive_queue: int
    topic_type: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def in_order(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        """Format the handle."""
        name = self.broker_name.replace(" ", _BLANK_IN_NAME)
        return " ".join(map(str, self._replace(broker_name=name)))


def parse_handle(text: str) -> ReceiptHandle:
    """Parse a receipt handle.

    :raises HandleError: the handle has too few parts, or a numeric part is not a number.
    """
    found = _HANDLE.match(text)
    if found is None:
        raise _invalid_handle(text)
    start, popped, invisible, revive, topic_type, broker, queue_id, offset = found.groups()
    if _BLANK_IN_NAME in broker:
        broker = broker.replace(_BLANK_IN_NAME, " ")
    return ReceiptHandle(
        *(int(start), int(popped), int(invisible), int(revive), topic_type, broker, int(queue_id), int(offset))
    )


def _invalid_handle(text: str) -> HandleError:
    """Return the error for a text that is not a receipt handle."""
    parts = text.split(" ")
    if len(parts) < _PARTS:
        return HandleError(f"a receipt handle must have {_PARTS} parts, not {len(parts)}")
    numbers = (*parts[:4], *parts[6:_PARTS])
    wrong = next(number for number in numbers if _NUMBER.fullmatch(number) is None)
    return HandleError(f"a part of the receipt handle is not a number: {wrong[:20]!r}")


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Return a group's POP retry topic: ``%RETRY%group_topic`` or ``%RETRY%group+topic``."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def is_retry_of(topic: str, group: str) -> bool:
    """Return whether a topic can be a group's retry topic or one of its POP retry topics."""
    own = RETRY_PREFIX + group
    return topic == own or topic.startswith((own + "_", own + "+"))


def original_topic(topic: str, group: str) -> str:
    """Return the original topic for a POP retry topic; return any other topic unchanged."""
    own = RETRY_PREFIX + group
    return topic[len(own) + 1 :] if topic.startswith((own + "_", own + "+")) else topic


def topic_type(topic: str, group: str) -> str:
    """Return the code for a topic's type (normal or retry topic) in receipt handles and response fields
    (``ExtraInfoUtil.getRetry``).
    """
    if topic.startswith(f"{RETRY_PREFIX}{group}+"):
        return RETRY_TOPIC_V2
    return RETRY_TOPIC_V1 if topic.startswith(RETRY_PREFIX) else NORMAL_TOPIC


def real_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic from which a message was popped, according to the topic type
    (``ExtraInfoUtil.getRealTopic``).
    """
    if kind == RETRY_TOPIC_V1:
        return pop_retry_topic(topic, group)
    return pop_retry_topic(topic, group, v2=True) if kind == RETRY_TOPIC_V2 else topic


def start_info(kind: str, queue_id: int, start: int) -> str:
    """Format a ``startOffsetInfo`` entry."""
    return f"{kind} {queue_id} {start}"


def offset_info(kind: str, queue_id: int, offsets: list[int]) -> str:
    """Format a ``msgOffsetInfo`` entry."""
    return f"{kind} {queue_id} {','.join(map(str, offsets))}"


def read_offset_info(info: str) -> dict[tuple[str, int], list[int]]:
    """Parse ``msgOffsetInfo`` into offsets by topic type and queue.

    :raises HandleError: the text is malformed.
    """
    found: dict[tuple[str, int], list[int]] = {}
    try:
        for part in filter(None, info.split(";")):
            kind, queue_id, offsets = part.split(" ")
            found.setdefault((kind, int(queue_id)), []).extend(map(int, offsets.split(",")))
    except ValueError:
        raise HandleError(f"{info[:100]!r} is not a valid msgOffsetInfo") from None
    return found
