"""Names of queues as names of topics."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cometmq.integrations.names import QueueNameError, queue_of, topic_of
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.names import check_topic


def can_be_encoded(*queues: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for queue in queues for char in queue)


@given(queue=st.text(min_size=1, max_size=10))
@example(queue="celery")
@example(queue="Büro/nachts 1")
@example(queue="%2F")
@example(queue="a.b~c|d%e")
@example(queue=".")
def test_a_name_comes_back_in_its_own_spelling(queue: str) -> None:
    assume(can_be_encoded(queue))
    topic = topic_of("app", queue)
    assert check_topic(topic) is None
    assert queue_of("app", topic) == queue


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
    assert len(topic_of("app", "a" * 123)) == MAX_TOPIC_CHARS
    with pytest.raises(QueueNameError, match="114 are allowed"):
        topic_of("app", "a" * 123, reserved_chars=13)


@pytest.mark.parametrize("prefix", ["", "a b", "ü", "%DLQ%", "a" * 41, "rmq_sys_a", "TOOLS_CONSUMER"])
def test_a_prefix_with_other_characters_is_refused(prefix: str) -> None:
    with pytest.raises(QueueNameError, match="prefix"):
        topic_of(prefix, "q")


@pytest.mark.parametrize("topic", ["other-q", "app-", "app", "app-%ZZ", "app-a b", "app-%41", "app-%FF", "%RETRY%app"])
def test_a_topic_of_no_queue(topic: str) -> None:
    assert queue_of("app", topic) is None
