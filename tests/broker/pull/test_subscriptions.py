"""Expressions of tags become sets of hashes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from cometmq.broker.limits import CACHED_LONG_SUBSCRIPTIONS, MAX_SUBSCRIPTION_CHARS
from cometmq.broker.pull.filters import SubscriptionError, parse_sql, parse_tags
from cometmq.message.ids import tags_code


@pytest.mark.parametrize("expression", ["", "*"])
def test_everything(expression: str) -> None:
    assert parse_tags(expression).wants_all


def test_tags_are_trimmed_and_hashed() -> None:
    assert parse_tags(" TagA ||TagB|| ").codes == frozenset({tags_code("TagA"), tags_code("TagB")})


def test_only_separators_name_no_tag() -> None:
    with pytest.raises(SubscriptionError):
        parse_tags("||")


@pytest.mark.parametrize(
    ("expression", "expression_type", "words"),
    [
        ("", "SQL92", "needs an expression"),
        ("a > 1", "SQL93", "unknown expression type 'SQL93'"),
        ("a > > 1", "SQL92", "not '>', at character 5"),
        ("a != 1", "SQL92", "at character 3 (write <> for not equal)"),
        ("(" * 60 + "a = 1" + ")" * 60, "SQL92", "nested more than 50 deep"),
        (" OR ".join(["a = 1"] * 200), "SQL92", "more than 256 names and values"),
    ],
)
def test_expressions_that_cannot_be_used_say_why(expression: str, expression_type: str, words: str) -> None:
    with pytest.raises(SubscriptionError) as raised:
        parse_sql(expression, expression_type)
    assert words in str(raised.value)


def test_what_is_too_long_is_refused() -> None:
    expression = "t" * (MAX_SUBSCRIPTION_CHARS + 1)
    with pytest.raises(SubscriptionError, match="the maximum is 16384"):
        parse_tags(expression)
    with pytest.raises(SubscriptionError, match="the maximum is 16384"):
        parse_sql(expression, "SQL92")


def test_expressions_that_nobody_uses_again_do_not_pile_up() -> None:
    def use(expressions: int) -> None:
        for number in range(expressions):
            parse_tags("||".join(f"{number}x{tag}" for tag in range(1000)))

    use(CACHED_LONG_SUBSCRIPTIONS)
    gc.collect()
    tracemalloc.start()
    use(3 * CACHED_LONG_SUBSCRIPTIONS)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 150_000 * CACHED_LONG_SUBSCRIPTIONS
