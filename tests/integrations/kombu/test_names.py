"""Names of topics: of any queue, without collisions, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.integrations.kombu.names import (
    MAX_CHARS,
    group_of,
    is_shortened,
    queue_of,
    quoted,
    tag_of,
    topic_of_exchange,
    topic_of_queue,
)
from cometmq.message.names import SYSTEM_TOPICS, check_group, check_topic, is_system_topic
from cometmq.message.pop_info import pop_retry_topic

QUEUES = st.text(min_size=1) | st.sampled_from(["celery", "a.b", "a%2Eb", "a/b", "a|b", "Ä", "\ud800", *SYSTEM_TOPICS])


@given(QUEUES, QUEUES, st.sampled_from(["", "staging|"]))
def test_any_queue_has_its_own_topic_that_leads_back_to_it(queue: str, other: str, prefix: str) -> None:
    topic = topic_of_queue(prefix, queue)
    assert check_topic(topic) is None
    assert check_topic(pop_retry_topic(topic, group_of(prefix))) is None
    assert len(topic) <= MAX_CHARS + 2
    assert not is_system_topic(topic)
    assert (topic == topic_of_queue(prefix, other)) == (queue == other)
    assert queue_of(prefix, topic) == (None if is_shortened(topic) else queue)


@given(QUEUES, QUEUES)
def test_no_exchange_has_the_topic_of_a_queue(queue: str, exchange: str) -> None:
    assert check_topic(topic_of_exchange("", exchange)) is None
    assert topic_of_exchange("", exchange) != topic_of_queue("", queue)


def test_usual_names_stay_as_they_are() -> None:
    assert topic_of_queue("", "celery") == "celery"
    assert topic_of_queue("", "orders-high_1") == "orders-high_1"
    assert topic_of_queue("", "orders.high") == "orders%2Ehigh"
    assert topic_of_queue("staging|", "celery") == "staging|celery"


@pytest.mark.parametrize("topic", ["%RETRY%celery_celery", "%DLQ%celery", "celery%2epidbox", "celery|exchange"])
def test_topics_of_no_queue(topic: str) -> None:
    assert queue_of("", topic) is None


@given(QUEUES)
def test_tags_and_prefixes_are_allowed(key: str) -> None:
    assert len(tag_of(key)) == 24
    assert check_group(group_of(f"{quoted(key)[:20]}|")) is None
