"""Registrations survive both of their forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.bodies import BodyError, DataVersion, TopicConfig
from cometmq.remoting.register_body import Registration, decode_registration, encode_registration

names = st.text(alphabet="abcXYZ019_-%|", min_size=1, max_size=127)
queues = st.integers(0, 2**31 - 1)
registrations = st.builds(
    Registration,
    st.builds(DataVersion, counter=st.integers(0, 2**62), timestamp=st.integers(0, 2**62)),
    st.lists(
        st.builds(
            TopicConfig, topic_name=names, read_queue_nums=queues, write_queue_nums=queues, perm=st.integers(0, 7)
        )
    ).map(lambda topics: {topic.topic_name: topic for topic in topics}),
    st.lists(names),
)


@given(registrations, st.booleans())
def test_what_is_encoded_is_decoded(registration: Registration, compressed: bool) -> None:
    body = encode_registration(registration, compressed=compressed)
    assert decode_registration(body, compressed=compressed) == registration


@given(st.binary(max_size=200), st.booleans())
def test_anything_else_is_refused_and_nothing_worse(data: bytes, compressed: bool) -> None:
    try:
        decode_registration(data, compressed=compressed)
    except BodyError:
        return


def test_an_empty_body_is_a_broker_without_topics() -> None:
    assert decode_registration(b"").topics == {}


def test_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(BodyError):
        decode_registration(b'{"topicConfigSerializeWrapper":5}')
