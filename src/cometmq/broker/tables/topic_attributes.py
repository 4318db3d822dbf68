"""Topic attributes, as in RocketMQ 5, and the format for changing them.

A change is a text such as ``+message.type=FIFO,-reserve.time`` (``AttributeParser``, ``AttributeUtil``,
``TopicAttributes``); errors have Apache's texts. Only message.type has an effect here: RocketMQ 5 clients over gRPC
receive it with the route, and their sends are checked against it. As in Apache's broker, sends over remoting are not
checked. ``archive.read=off``, an attribute of CometMQ, excludes a topic from the archive that the broker reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.broker.limits import MAX_ATTRIBUTES_CHARS
from cometmq.errors import CometMQError

MESSAGE_TYPE: Final = "message.type"
READ_ARCHIVE: Final = "archive.read"
_OFF: Final = "off"
PRIORITY: Final = "PRIORITY"
MESSAGE_TYPES: Final = ("UNSPECIFIED", "MIXED", "TRANSACTION", PRIORITY, "FIFO", "DELAY", "LITE", "NORMAL")
_RESERVE_TIME_MAX: Final = 2**63 - 1


class TopicAttributeError(CometMQError):
    """Raised when a change to a topic's attributes is not allowed."""


def _one_of(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values:
            raise TopicAttributeError(f"value is not in set: [{', '.join(values)}]")

    return check


def _reserve_time(value: str) -> None:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise TopicAttributeError(f'For input string: "{value[:64]}"')
    if not -1 <= int(value) <= _RESERVE_TIME_MAX:
        raise TopicAttributeError(f"value is not in range(-1, {_RESERVE_TIME_MAX})")


_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    MESSAGE_TYPE: _one_of(*MESSAGE_TYPES),
    "queue.type": _one_of("SimpleCQ"),
    "cleanup.policy": _one_of("DELETE"),
    "reserve.time": _reserve_time,
    READ_ARCHIVE: _one_of("on", _OFF),
}
"""The supported attributes and their checks. Attributes for batch queues and compaction are not supported."""
_UNCHANGEABLE: Final = frozenset({"queue.type", "cleanup.policy"})


def changed_attributes(current: Mapping[str, str] | None, change: str, *, is_new: bool) -> dict[str, str]:
    """Return a topic's attributes after a change.

    :param current: the attributes before the change; empty for a new topic.
    :raises TopicAttributeError: the change is not allowed.
    """
    attributes = dict(current or {})
    for key, value in _parsed(change).items():
        sign, name = key[:1], key[1:]
        if is_new and sign != "+":
            raise TopicAttributeError(f"only add attribute is supported while creating topic. key: {name}")
        check = _CHECKS.get(name)
        if check is None:
            raise TopicAttributeError(f"unsupported key: {name}")
        if not is_new and name in _UNCHANGEABLE and attributes.get(name) != value:
            raise TopicAttributeError(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == "+":
            check(value)
            attributes[name] = value
        elif name not in attributes:
            raise TopicAttributeError(f"attempt to delete a nonexistent key: {name}")
        else:
            del attributes[name]
    return attributes


def _parsed(change: str) -> dict[str, str]:
    if len(change) > MAX_ATTRIBUTES_CHARS:
        raise TopicAttributeError(
            f"the attributes have {len(change)} characters; the maximum is {MAX_ATTRIBUTES_CHARS}"
        )
    found: dict[str, str] = {}
    for part in filter(None, change.split(",")):
        key, is_set, value = part.partition("=")
        if is_set and not key.startswith("+"):
            raise TopicAttributeError(f"add/alter attribute format is wrong: {key}")
        if not is_set and not key.startswith("-"):
            raise TopicAttributeError(f"delete attribute format is wrong: {key}")
        if key in found:
            raise TopicAttributeError(f"key duplication: {key}")
        found[key] = value.partition("=")[0]
    return found


def message_type_of(attributes: Mapping[str, str] | None) -> str:
    """Return a topic's message type, which is NORMAL if the attribute is missing."""
    return (attributes or {}).get(MESSAGE_TYPE, "NORMAL")


def reads_archive(attributes: Mapping[str, str] | None) -> bool:
    """Return whether a topic's archived messages may be read."""
    return (attributes or {}).get(READ_ARCHIVE) != _OFF
