"""Tag subscriptions: expression text to tag codes (``FilterAPI``, ``SubscriptionData``).

An expression is ``*`` (everything), one tag, or tags joined by ``||``. The broker compares 32-bit
hashes only; consumers compare the tags again, since hashes collide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from cometmq.errors import CometMQError
from cometmq.limits import (
    CACHED_LONG_SUBSCRIPTIONS,
    CACHED_SUBSCRIPTIONS,
    LONG_SUBSCRIPTION_CHARS,
    MAX_SUBSCRIPTION_CHARS,
)
from cometmq.message.ids import tags_code

TAG: Final = "TAG"
ALL: Final = "*"
_SEPARATOR: Final = "||"


class SubscriptionError(CometMQError):
    """An expression that cannot be used as a subscription."""


class TagFilter(msgspec.Struct, frozen=True):
    """What one pull wants: ``codes`` is ``None`` for every message."""

    expression_type: str
    codes: frozenset[int] | None

    @property
    def by_tag(self) -> bool:
        """Whether the expression is one of tags (and not SQL92 or of an unknown kind)."""
        return self.expression_type == TAG


def parse_subscription(expression: str, expression_type: str) -> TagFilter:
    """Turn the subscription of a pull request into a filter (``FilterAPI.build``).

    :raises SubscriptionError: an expression of tags that names none, another kind that is empty, or one that
        is too long.
    """
    if len(expression) > MAX_SUBSCRIPTION_CHARS:
        raise SubscriptionError(f"a subscription of {len(expression)} characters; {MAX_SUBSCRIPTION_CHARS} is the most")
    if not expression_type or expression_type == TAG:
        return (_tags if len(expression) <= LONG_SUBSCRIPTION_CHARS else _long_tags)(expression)
    if not expression:
        raise SubscriptionError(f"a subscription of type {expression_type} needs an expression")
    return TagFilter(expression_type, None)


def _parse_tags(expression: str) -> TagFilter:
    if not expression or expression == ALL:
        return TagFilter(TAG, None)
    tags = [tag.strip() for tag in expression.split(_SEPARATOR)]
    codes = frozenset(tags_code(tag) for tag in tags if tag)
    if not codes:
        raise SubscriptionError(f"the subscription {expression!r} names no tag")
    return TagFilter(TAG, codes)


_tags: Final = lru_cache(CACHED_SUBSCRIPTIONS)(_parse_tags)
_long_tags: Final = lru_cache(CACHED_LONG_SUBSCRIPTIONS)(_parse_tags)
