"""Expressions of tags become sets of hashes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from cometmq.broker.subscriptions import SubscriptionError, parse_subscription
from cometmq.limits import CACHED_LONG_SUBSCRIPTIONS, MAX_SUBSCRIPTION_CHARS
from cometmq.message.ids import tags_code


@pytest.mark.parametrize("expression", ["", "*"])
def test_everything(expression: str) -> None:
    assert parse_subscription(expression, "TAG").codes is None


def test_tags_are_trimmed_and_hashed() -> None:
    assert parse_subscription(" TagA ||TagB|| ", "").codes == frozenset({tags_code("TagA"), tags_code("TagB")})


def test_only_separators_name_no_tag() -> None:
    with pytest.raises(SubscriptionError):
        parse_subscription("||", "TAG")


def test_other_kinds_are_told_apart() -> None:
    assert not parse_subscription("a > 3", "SQL92").by_tag
    with pytest.raises(SubscriptionError):
        parse_subscription("", "SQL92")


def test_what_is_too_long_is_refused() -> None:
    for kind in ("TAG", "SQL92"):
        with pytest.raises(SubscriptionError, match="16384 is the most"):
            parse_subscription("t" * (MAX_SUBSCRIPTION_CHARS + 1), kind)


def test_expressions_that_nobody_uses_again_do_not_pile_up() -> None:
    def held_bytes(length: int, expressions: int) -> int:
        gc.collect()
        tracemalloc.start()
        for number in range(expressions):
            parse_subscription("||".join(f"{number}x{tag}" for tag in range(length)), "TAG")
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return held

    held_bytes(1000, CACHED_LONG_SUBSCRIPTIONS)
    assert held_bytes(1000, 3 * CACHED_LONG_SUBSCRIPTIONS) < 150_000 * CACHED_LONG_SUBSCRIPTIONS
