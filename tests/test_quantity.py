"""Numbers of things in words."""

from __future__ import annotations

import pytest

from cometmq.quantity import are, quantity


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 messages are"), (1, "1 message is"), (2, "2 messages are"), (1234, "1,234 messages are")]
)
def test_one_is_no_plural(count: int, text: str) -> None:
    assert f"{quantity(count, 'message')} {are(count)}" == text
