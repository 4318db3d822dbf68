"""Group attributes, as in RocketMQ 5 (``SubscriptionGroupAttributes``).

A change comes in the group's configuration: the name of an attribute to set begins with ``+``, and that of one to
remove with ``-``. Attributes without a sign replace all others; this is how settings are restored from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET

from cometmq.broker.limits import MAX_ATTRIBUTES_CHARS
from cometmq.broker.tables.topic_attributes import LONG_MAX, TopicAttributeError, altered, in_range, one_of
from cometmq.remoting.bodies import SubscriptionGroupConfig

_PRIORITY_FACTOR: Final = "priority.factor"
_PRIORITY_FACTOR_MAX: Final = 100
LITE_BIND_TOPIC: Final = "lite.bind.topic"
_LITE_SUB_MODEL: Final = "lite.sub.model"
_RESETS_ON_EVICTION: Final = "lite.sub.reset.offset.exclusive"
_RESETS_ON_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
_CLIENT_QUOTA: Final = "lite.sub.client.quota"
_MAX_EVENTS: Final = "lite.sub.client.max.event.cnt"
_WILDCARD: Final = "lite.sub.wildcard"
_EXCLUSIVE: Final = "Exclusive"
_DEFAULT_CLIENT_QUOTA: Final = 2_000


def _any_text(_value: str) -> None:
    pass


_bool: Final = one_of("true", "false")
_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    _PRIORITY_FACTOR: in_range(0, _PRIORITY_FACTOR_MAX),
    LITE_BIND_TOPIC: _any_text,
    _LITE_SUB_MODEL: one_of("Shared", _EXCLUSIVE),
    _RESETS_ON_EVICTION: _bool,
    _RESETS_ON_UNSUBSCRIBE: _bool,
    _CLIENT_QUOTA: in_range(-1, LONG_MAX),
    _MAX_EVENTS: in_range(10, LONG_MAX),
    _WILDCARD: _bool,
}


def changed_group(known: SubscriptionGroupConfig | None, asked: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Return a group's configuration with the attributes after a change.

    :param known: the configuration before the change.
    :raises TopicAttributeError: the change is not allowed.
    """
    current = None if known is None or known.attributes is UNSET else known.attributes
    change = asked.attributes
    if change is UNSET or not change:
        return asked if not current else msgspec.structs.replace(asked, attributes=current)
    if sum(len(name) + len(value) for name, value in change.items()) > MAX_ATTRIBUTES_CHARS:
        raise TopicAttributeError(f"the attributes have more than {MAX_ATTRIBUTES_CHARS} characters")
    if any(name[:1] in ("+", "-") for name in change):
        return msgspec.structs.replace(
            asked, attributes=altered(current, change, _CHECKS, is_new=known is None, of="subscription group")
        )
    for name, value in change.items():
        _CHECKS.get(name, _any_text)(value)
    return asked


def priority_factor(config: SubscriptionGroupConfig | None) -> int:
    """Return the percentage of a group's pops that read a topic of type PRIORITY by priority."""
    if config is None or config.attributes is UNSET or not config.attributes:
        return _PRIORITY_FACTOR_MAX
    try:
        return int(config.attributes.get(_PRIORITY_FACTOR, _PRIORITY_FACTOR_MAX))
    except ValueError:
        return _PRIORITY_FACTOR_MAX


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """A group's settings for lite topics."""

    bind_topic: str = ""
    """The parent topic that the group reads; empty if it reads no lite topics."""
    is_exclusive: bool = False
    """True if each lite topic has one client of the group: the last one that subscribed to it."""
    resets_on_eviction: bool = False
    """True if a client that takes a lite topic from another one reads it from its first message on."""
    resets_on_unsubscribe: bool = False
    """True if a lite topic from which a client unsubscribes is read from its first message on the next time."""
    client_quota: int = _DEFAULT_CLIENT_QUOTA
    """Maximum number of lite topics of one client; -1 means any number."""
    is_wildcard: bool = False
    """True if each client of the group reads all lite topics of the parent topic."""

    @classmethod
    def of(cls, config: SubscriptionGroupConfig | None) -> LiteGroup:
        """Return the settings of a group; missing and malformed attributes count as their defaults."""
        if config is None or config.attributes is UNSET or not config.attributes:
            return _NO_LITE_GROUP
        attributes = config.attributes
        try:
            quota = int(attributes.get(_CLIENT_QUOTA, _DEFAULT_CLIENT_QUOTA))
        except ValueError:
            quota = _DEFAULT_CLIENT_QUOTA
        return cls(
            attributes.get(LITE_BIND_TOPIC, ""),
            attributes.get(_LITE_SUB_MODEL) == _EXCLUSIVE,
            attributes.get(_RESETS_ON_EVICTION) == "true",
            attributes.get(_RESETS_ON_UNSUBSCRIBE) == "true",
            quota,
            attributes.get(_WILDCARD) == "true",
        )


_NO_LITE_GROUP: Final = LiteGroup()
