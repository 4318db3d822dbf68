"""Names of other tools' queues in names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, check_topic
from cometmq.message.queue_names import own_spelling, quoted, topic_spelled


@pytest.mark.parametrize(
    ("topic", "spelling"),
    [
        ("orders%2Ehigh", "orders.high"),
        ("%E8%AE%A2%E5%8D%95", "订单"),
        ("a%20b", "a b"),
        ("orders", "orders"),
        (f"{RETRY_PREFIX}abc", f"{RETRY_PREFIX}abc"),
        (f"{DLQ_PREFIX}41", f"{DLQ_PREFIX}41"),
        ("orders%2ehigh", "orders%2ehigh"),
        ("%53CHEDULE", "%53CHEDULE"),
        ("a%25b", "a%25b"),
        ("a%2Eb%", "a%2Eb%"),
        ("%FF", "%FF"),
        ("celery%2Epidbox|exchange", "celery%2Epidbox|exchange"),
    ],
)
def test_only_names_of_queues_have_another_spelling(topic: str, spelling: str) -> None:
    assert own_spelling(topic) == spelling
    assert topic_spelled(spelling) == topic


@given(st.text("ab.%2E|- é\x1b~/", max_size=12))
def test_each_text_means_one_topic(text: str) -> None:
    topic = topic_spelled(text)
    assert not topic or check_topic(topic) is None
    assert topic_spelled(own_spelling(topic)) == topic
    assert own_spelling(quoted(text)) in (text, quoted(text))


def test_half_a_character_is_in_no_name() -> None:
    assert topic_spelled("caf\udce9") == "caf\udce9"
    assert check_topic("caf\udce9") is not None
