"""Names of lite topics."""

from __future__ import annotations

import pytest

from cometmq.message.lite_names import check_lite_topic, lmq_name, split_lmq


def test_a_queue_is_named_after_both_topics() -> None:
    assert lmq_name("Parent", "a b") == "%LMQ%$Parent$a b"
    assert split_lmq("%LMQ%$Parent$a b") == ("Parent", "a b")


@pytest.mark.parametrize("name", ["", "Parent", "%LMQ%$Parent", "%LMQ%$$lite", "%LMQ%$Parent$", "%LMQ%Parent$lite"])
def test_other_names_are_no_queues_of_lite_topics(name: str) -> None:
    assert split_lmq(name) is None


@pytest.mark.parametrize("name", ["a", "session 7", "\u4f1a\u8bdd", "x" * 64, "\u00e9" * 32])
def test_names_that_a_lite_topic_can_have(name: str) -> None:
    assert check_lite_topic(name) is None


@pytest.mark.parametrize("name", ["", "  ", "a$b", "a,b", "x" * 65, "\u00e9" * 33, "a\x01b", "a\nb", "\ud800", "\x02"])
def test_names_that_a_lite_topic_cannot_have(name: str) -> None:
    assert check_lite_topic(name)
