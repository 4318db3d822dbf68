"""Subscriptions: expression text to what a pull wants (``FilterAPI``, ``SubscriptionData``).

An expression of tags is ``*`` (everything), one tag, or tags joined by ``||``. The broker compares 32-bit
hashes only; consumers compare the tags again, since hashes collide. Other expressions are of SQL92.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from cometmq.errors import CometMQError
from cometmq.filter import SQL92, FilterError, Selector, parse_selector
from cometmq.limits import (
    CACHED_LONG_SUBSCRIPTIONS,
    CACHED_SUBSCRIPTIONS,
    LONG_SUBSCRIPTION_CHARS,
    MAX_KIND_CHARS,
    MAX_SUBSCRIPTION_CHARS,
)
from cometmq.message.ids import tags_code
from cometmq.store.get_message import Chooser, Predicate

TAG: Final = "TAG"
ALL: Final = "*"
_SEPARATOR: Final = "||"


PredicateKey = str | bytes | tuple[str, str]


class SubscriptionError(CometMQError):
    """An expression that cannot be used as a subscription."""


class MessageFilter(msgspec.Struct, frozen=True):
    """What one pull wants: every message whose tags code is one of ``codes`` and whose record ``predicate`` accepts.

    ``None`` stands for no condition. ``choose``, where there is one, finds the same messages as ``predicate``.
    """

    codes: frozenset[int] | None = None
    predicate: Predicate | None = None
    choose: Chooser | None = None
    key: PredicateKey | None = None
    """The same for predicates of the same meaning only."""
    chars: int = 0
    """Characters of the expression that the predicate was made of."""

    @property
    def wants_all(self) -> bool:
        """Whether every message is wanted."""
        return self.codes is None and self.predicate is None


EVERYTHING: Final = MessageFilter()


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression of this type is one of tags (``ExpressionType.isTagType``)."""
    return not expression_type or expression_type == TAG


def parse_tags(expression: str) -> MessageFilter:
    """The filter of an expression of tags (``FilterAPI.buildSubscriptionData``).

    :raises SubscriptionError: it names none, or is too long.
    """
    _check_length(expression)
    return (_tags if len(expression) <= LONG_SUBSCRIPTION_CHARS else _long_tags)(expression)


def parse_sql(expression: str, expression_type: str) -> Selector:
    """The selector of an expression of another type, which must be SQL92.

    :raises SubscriptionError: it is empty, too long or malformed, or of an unknown type; says what and where.
    """
    _check_length(expression)
    if expression_type != SQL92:
        raise SubscriptionError(
            f"the expression type {expression_type[:MAX_KIND_CHARS]!r} is not known", next_step="use TAG or SQL92"
        )
    if not expression:
        raise SubscriptionError("a subscription of type SQL92 needs an expression")
    try:
        return parse_selector(expression)
    except FilterError as error:
        raise SubscriptionError(error.message, next_step=error.next_step) from None


def _check_length(expression: str) -> None:
    if len(expression) > MAX_SUBSCRIPTION_CHARS:
        raise SubscriptionError(f"a subscription of {len(expression)} characters; {MAX_SUBSCRIPTION_CHARS} is the most")


def _parse_tags(expression: str) -> MessageFilter:
    if not expression or expression == ALL:
        return EVERYTHING
    tags = [tag.strip() for tag in expression.split(_SEPARATOR)]
    codes = frozenset(tags_code(tag) for tag in tags if tag)
    if not codes:
        raise SubscriptionError(f"the subscription {expression!r} names no tag")
    return MessageFilter(codes)


_tags: Final = lru_cache(CACHED_SUBSCRIPTIONS)(_parse_tags)
_long_tags: Final = lru_cache(CACHED_LONG_SUBSCRIPTIONS)(_parse_tags)
