from __future__ import annotations

import pytest

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
