"""Registrations survive both of their forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting import register_body
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


def test_too_many_topics_are_refused_before_the_rest_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is decoded in one call, and the event loop would wait for it."""
    decoded: list[int] = []

    class Recording:
        def __init__(self, decoder: Any) -> None:
            self._decoder = decoder

        def decode(self, data: bytes) -> Any:
            decoded.append(len(data))
            return self._decoder.decode(data)

    for name in ("_plain_decoder", "_rows_decoder"):
        monkeypatch.setattr(register_body, name, Recording(getattr(register_body, name)))
    monkeypatch.setattr(register_body, "MAX_NAMESRV_TOPICS", 5_000)
    topics = {name: TopicConfig(topic_name=name) for name in map("topic-{}".format, range(20_000))}
    body = encode_registration(Registration(DataVersion(counter=1, timestamp=1), topics))
    assert len(body) > 2_000_000
    with pytest.raises(BodyError, match="at most 5000 topics"):
        decode_registration(body)
    assert 0 < sum(decoded) < 1_000_000


@pytest.mark.parametrize("place", [b"{", b'"topicConfigSerializeWrapper":{'])
def test_a_table_of_another_object_is_not_that_of_the_topics(monkeypatch: pytest.MonkeyPatch, place: bytes) -> None:
    """A topic may have the name of a field, and 5.x has maps by topic beside the table."""
    monkeypatch.setattr(register_body, "_PIECE_BYTES", 100)
    topics = {name: TopicConfig(topic_name=name) for name in map("topic-{}".format, range(20))}
    registration = Registration(DataVersion(counter=1, timestamp=1), topics)
    body = encode_registration(registration)
    rows = b",".join(b'"%d":{"topicName":"other-%d"}' % (number, number) for number in range(50))
    other = body.replace(place, place + b'"topicQueueMappingInfoMap":{"topicConfigTable":{' + rows + b"}},", 1)
    assert decode_registration(other) == decode_registration(body) == registration
