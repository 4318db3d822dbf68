"""Messages to lite topics as the producer encodes them, and the queues that it chooses."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cometmq.client import IllegalMessageError, Message, ProducerConfig
from cometmq.client.send.encoding import SendEncoder, is_batchable
from cometmq.client.send.selection import queue_of_lite_topic
from cometmq.message.properties import LITE_TOPIC, decode_properties
from cometmq.remoting.bodies import MessageQueue


def text_of(**fields: Any) -> str:
    """The stored properties of a message."""
    return SendEncoder("G", ProducerConfig()).properties_text(Message("L", b"body", **fields), "KEY")


def test_the_lite_topic_is_a_property() -> None:
    assert decode_properties(text_of(lite_topic="session-1"))[LITE_TOPIC] == "session-1"
    assert LITE_TOPIC not in decode_properties(text_of(tags="a"))


@pytest.mark.parametrize("name", ["", " ", "a$b", "a,b", "x" * 65, "a\nb"])
def test_a_name_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(IllegalMessageError, match="lite topic"):
        text_of(lite_topic=name)


@pytest.mark.parametrize("fields", [{"delay_level": 1}, {"delay": datetime.timedelta(1)}, {"priority": 1}])
def test_a_message_of_a_lite_topic_has_no_delay_and_no_priority(fields: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessageError, match="cannot have a delay or a priority"):
        text_of(lite_topic="a", **fields)


def test_messages_of_lite_topics_are_in_no_batch() -> None:
    assert not is_batchable(Message("L", b"body", lite_topic="a"))


@pytest.mark.parametrize(("name", "number"), [("a", 0), ("session-1", 3), ("session-2", 2), ("user_77", 3)])
def test_the_queue_is_that_which_apaches_proxy_chooses(name: str, number: int) -> None:
    queues = [MessageQueue("L", f"broker-{broker}", queue) for broker in "ab" for queue in range(2)]
    assert queue_of_lite_topic(queues, name) == queues[number]
