"""Names of topics and groups: what may pass and what may not."""

from __future__ import annotations

import pytest

from cometmq.message.names import check_group, check_topic, dlq_topic, retry_topic


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "Goldodd|%-_n", "x" * 127])
def test_names_that_apache_takes_are_fine(name: str) -> None:
    assert check_topic(name) is None


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "a/b", "x" * 128, "topic.a", "主题", "a\n", "a\0b"])
def test_names_that_could_be_paths_or_too_long_are_refused_in_apaches_words(name: str) -> None:
    assert (check_topic(name) or "").startswith("The specified topic")
    assert (check_group(name) or "").startswith("the specified group")


def test_retry_and_dead_letter_topics_of_the_longest_group_are_still_topics() -> None:
    group = "g" * 120
    assert check_group(group) is None
    assert check_topic(retry_topic(group)) is None
    assert check_topic(dlq_topic(group)) is None
    assert check_group(group + "g") is not None
