from __future__ import annotations

import pytest

from cometmq.broker.pull.filters import parse_tags
from cometmq.client.consumer.subscription import TAG, subscription
from cometmq.message.ids import tags_code


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (" a ||\tb ", ["a", "b"]),
        ("a\u3000 || \u00a0b", ["a\u3000", "\u00a0b"]),
        ("\u3000", ["\u3000"]),
    ],
)
def test_tags_lose_the_blanks_that_javas_trim_takes_away_and_no_others(expression: str, tags: list[str]) -> None:
    data = subscription("T", expression, TAG, 1)
    assert (data.tags_set, data.code_set) == (tags, [tags_code(tag) for tag in tags])


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_half_of_a_surrogate_pair_is_refused_where_it_is_given_and_not_by_each_heartbeat(kind: str) -> None:
    with pytest.raises(ValueError, match="invalid character"):
        subscription("T", "a = '\ud800'", kind, 1)


@pytest.mark.parametrize("tag", ["a\u3000", "\xa0a", "a\u2003b"])
def test_a_broker_looks_for_the_tag_that_java_subscribes_to(tag: str) -> None:
    assert parse_tags(f" {tag}\t|| ").codes == frozenset({tags_code(tag)})
