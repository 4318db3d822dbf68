from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.send.encoding import split_batches
from cometmq.message.message import Message

messages = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["A", "B", "%RETRY%g"]),
        body=st.binary(min_size=1, max_size=40),
        delay_level=st.sampled_from([0, 0, 0, 2]),
        properties=st.sampled_from([{}, {}, {"color": "red"}, {"TIMER_DELAY_SEC": "5"}]),
        wait_store_msg_ok=st.booleans(),
    ),
    max_size=60,
)


@given(messages, st.integers(40, 200))
def test_batches_hold_every_message_once_and_keep_the_rules(todo: list[Message], limit: int) -> None:
    batches = split_batches(todo, limit, [len(message.body) for message in todo])
    assert sorted(position for batch in batches for position in batch) == list(range(len(todo)))
    for batch in batches:
        chosen = [todo[position] for position in batch]
        assert batch == sorted(batch)
        assert len({(message.topic, message.wait_store_msg_ok) for message in chosen}) == 1
        if len(batch) > 1:
            assert sum(len(message.body) for message in chosen) <= limit
            assert not any(message.delay_level or message.topic.startswith("%RETRY%") for message in chosen)
            assert not any("TIMER_DELAY_SEC" in message.properties for message in chosen)


def test_a_list_of_one_topic_is_one_batch() -> None:
    assert split_batches([Message("A", b"x")] * 5, 100, [1] * 5) == [[0, 1, 2, 3, 4]]
