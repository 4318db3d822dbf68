"""Expressions of tags become sets of hashes."""

from __future__ import annotations

import pytest

from cometmq.broker.subscriptions import SubscriptionError, parse_subscription
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
