"""Topic attributes, as in RocketMQ 5, and the format for changing them.

A change is a text such as ``+message.type=FIFO,-reserve.time`` (``AttributeParser``, ``AttributeUtil``,
``TopicAttributes``); errors have Apache's texts. Two of Apache's attributes have an effect here. RocketMQ 5 clients
over gRPC receive ``message.type`` with the route, and their sends are checked against it; a topic of type LITE has
lite topics. ``lite.topic.expiration`` is the number of minutes after which an idle lite topic is removed. As in
Apache's broker, the types of sends over remoting are not checked.

Two attributes are CometMQ's own: ``archive.read=off`` excludes a topic from the archive that the broker reads;
``expired.messages`` says what becomes of messages whose life time has ended. The broker sets the latter to ``skip``
when it stores the first message with a life time in a topic. Pulls of other topics need not look for life times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.broker.limits import MAX_ATTRIBUTES_CHARS
from cometmq.errors import CometMQError
from cometmq.message.names import MESSAGE_TYPE

READ_ARCHIVE: Final = "archive.read"
_OFF: Final = "off"
EXPIRED_MESSAGES: Final = "expired.messages"
SKIP: Final = "skip"
"""Expired messages are passed over."""
_DEAD_LETTER: Final = "dead-letter"
"""Expired messages become dead letters of the group that would have received them."""
PRIORITY: Final = "PRIORITY"
LITE: Final = "LITE"
MESSAGE_TYPES: Final = ("UNSPECIFIED", "MIXED", "TRANSACTION", PRIORITY, "FIFO", "DELAY", LITE, "NORMAL")
LITE_EXPIRATION: Final = "lite.topic.expiration"
_LITE_EXPIRATION_MAX: Final = 43_200
_COMPACTION: Final = "COMPACTION"
LONG_MAX: Final = 2**63 - 1

Check = Callable[[str], None]
"""Raises :class:`TopicAttributeError` if an attribute may not have a value."""


class TopicAttributeError(CometMQError):
    """Raised when a change to the attributes of a topic or group is not allowed."""


def one_of(*values: str) -> Check:
    """Return the check for an attribute with fixed values."""

    def check(value: str) -> None:
        if value not in values:
            raise TopicAttributeError(f"value is not in set: [{', '.join(values)}]")

    return check


def in_range(least: int, most: int) -> Check:
    """Return the check for a whole number."""

    def check(value: str) -> None:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
            raise TopicAttributeError(f'For input string: "{value[:64]}"')
        if not least <= int(value) <= most:
            raise TopicAttributeError(f"value is not in range({least}, {most})")

    return check


def _cleanup_policy(value: str) -> None:
    if value == _COMPACTION:
        raise TopicAttributeError(
            "cleanup.policy=COMPACTION is not supported: an archive with a key index keeps and finds a key's messages"
        )
    one_of("DELETE")(value)


_CHECKS: Final[Mapping[str, Check]] = {
    MESSAGE_TYPE: one_of(*MESSAGE_TYPES),
    "queue.type": one_of("SimpleCQ"),
    "cleanup.policy": _cleanup_policy,
    "reserve.time": in_range(-1, LONG_MAX),
    LITE_EXPIRATION: in_range(-1, _LITE_EXPIRATION_MAX),
    READ_ARCHIVE: one_of("on", _OFF),
    EXPIRED_MESSAGES: one_of(SKIP, _DEAD_LETTER),
}
"""The supported attributes and their checks. Attributes for batch queues and compaction are not supported."""
_UNCHANGEABLE: Final = frozenset({"queue.type", "cleanup.policy"})


def changed_attributes(current: Mapping[str, str] | None, change: str, *, is_new: bool) -> dict[str, str]:
    """Return a topic's attributes after a change.

    :param current: the attributes before the change; empty for a new topic.
    :raises TopicAttributeError: the change is not allowed.
    """
    return altered(current, _parsed(change), _CHECKS, is_new=is_new, unchangeable=_UNCHANGEABLE, of="topic")


def altered(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    checks: Mapping[str, Check],
    *,
    is_new: bool,
    unchangeable: frozenset[str] = frozenset(),
    of: str,
) -> dict[str, str]:
    """Return attributes after changes, whose names begin with ``+`` or ``-`` (``AttributeUtil``).

    :param of: what has the attributes, for errors.
    :raises TopicAttributeError: a change is not allowed.
    """
    attributes = dict(current or {})
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if is_new and sign != "+":
            raise TopicAttributeError(f"only add attribute is supported while creating {of}. key: {name}")
        check = checks.get(name)
        if check is None:
            raise TopicAttributeError(f"unsupported key: {name}")
        if not is_new and name in unchangeable and attributes.get(name) != value:
            if sign == "+" and value == _COMPACTION:
                check(value)
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


def has_life_times(attributes: Mapping[str, str] | None) -> bool:
    """Return whether messages of a topic may have life times."""
    return attributes is not None and EXPIRED_MESSAGES in attributes


def makes_dead_letters(attributes: Mapping[str, str] | None) -> bool:
    """Return whether the expired messages of a topic become dead letters."""
    return (attributes or {}).get(EXPIRED_MESSAGES) == _DEAD_LETTER


def is_lite(attributes: Mapping[str, str] | None) -> bool:
    """Return whether a topic has lite topics."""
    return bool(attributes) and message_type_of(attributes) == LITE


def lite_expiration(attributes: Mapping[str, str] | None) -> int:
    """Return the minutes after which a topic's idle lite topics are removed, or -1 for never."""
    try:
        return int((attributes or {}).get(LITE_EXPIRATION, "-1"))
    except ValueError:
        return -1
