"""Names of queues as names of topics."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cometmq.integrations.names import QueueNameError, topic_of
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.names import check_topic
from cometmq.message.pop_info import pop_retry_topic


def can_be_encoded(*queues: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for queue in queues for char in queue)


@given(queue=st.text(min_size=1, max_size=10))
@example(queue="celery")
@example(queue="Büro/nachts 1")
@example(queue="%2F")
@example(queue="a.b~c|d%e")
@example(queue=".")
def test_any_name_has_a_topic(queue: str) -> None:
    assume(can_be_encoded(queue))
    topic = topic_of("app", queue)
    assert check_topic(topic) is None
    assert unquote(topic) == f"app-{queue}"


@given(one=st.text(min_size=1, max_size=9), two=st.text(min_size=1, max_size=9))
@example(one="a/b", two="a%2Fb")
@example(one="a-b", two="a_b")
@example(one="a", two="A")
def test_two_queues_have_two_topics(one: str, two: str) -> None:
    assume(can_be_encoded(one, two))
    assert (topic_of("app", one) == topic_of("app", two)) == (one == two)


@pytest.mark.parametrize("queue", ["", "a" * 124, "ü" * 30, "\ud800"])
def test_a_name_that_cannot_be_a_topic_is_refused(queue: str) -> None:
    with pytest.raises(QueueNameError):
        topic_of("app", queue)


def test_the_longest_name() -> None:
    longest = topic_of("app", "a" * 112)
    assert len(pop_retry_topic(longest, "app")) == MAX_TOPIC_CHARS
    with pytest.raises(QueueNameError, match="116 are allowed"):
        topic_of("app", "a" * 113)


@pytest.mark.parametrize("prefix", ["", "a b", "ü", "%DLQ%", "a" * 41, "rmq_sys_a", "TOOLS_CONSUMER"])
def test_a_prefix_with_other_characters_is_refused(prefix: str) -> None:
    with pytest.raises(QueueNameError, match="prefix"):
        topic_of(prefix, "q")
