"""Bodies of requests: read as other bodies are, and none takes long, whatever it holds."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.limits import MAX_HEARTBEAT_BYTES
from cometmq.fastjson import FastjsonError, dumps, loads, quote_keys
from cometmq.limits import MAX_LOOSE_BODY_BYTES, MAX_PARSED_BODY_BYTES
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionGroupConfig,
    decode_body,
    decode_request,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(-5, 99), inner, max_size=3)
    ),
    max_leaves=12,
)


def with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_keys_without_quotes_are_read_as_if_they_had_them(value: object) -> None:
    assert loads(dumps(value)) == with_text_keys(value)


@given(st.text(alphabet='{}[]":,\\ a0-tn', max_size=24))
def test_quoting_keys_makes_nothing_valid_that_was_not(text: str) -> None:
    quoted = quote_keys(text.encode())
    if quoted.decode() != text:
        try:
            loads(quoted)
        except FastjsonError:
            return
        bare = text.replace('"', "").replace(" ", "")
        assert quoted.decode().replace('"', "").replace(" ", "") == bare
        assert text.count('"') % 2 == 0 or '\\"' in text


LOCKS = b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":"7"}]}'


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1}],"x":null}'),
        (HeartbeatData, b'{clientID:"c",consumerDataSet:[{groupName:"g",subscriptionDataSet:[{topic:"T"}]}]}'),
        (HeartbeatData, b'{"clientID":"c","producerDataSet":[{"groupName":"p","more":{"a":[1,2]}}]}'),
        (LockBatchRequestBody, LOCKS),
        (SubscriptionGroupConfig, b'{"groupName":"g","consumeEnable":"false","retryQueueNums":"2"}'),
        (DataVersion, b'{"counter":3,"timestamp":"5"}'),
    ],
)  # fmt: skip
def test_a_request_is_read_as_any_other_body(kind: type[object], text: bytes) -> None:
    assert decode_request(kind, text, len(text)) == decode_body(kind, text)


@pytest.mark.parametrize("depth", [100, 500, 900, 995, 5_000, 100_000])
@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b"{0:", b"}"), (b"{{", b"}}"), (b'{"mqSet":[', b"]}")]
)
def test_depth_is_refused_in_words(opening: bytes, closing: bytes, depth: int) -> None:
    for text in (opening * depth, opening * depth + b"1" + closing * depth):
        with pytest.raises(BodyError):
            decode_body(HeartbeatData, text)
        with pytest.raises(BodyError):
            decode_request(HeartbeatData, text, len(text))


UNITS = [
    b"0:0,",
    b"1,",
    b"[],",
    b'"a":null,',
    b"{",
    b"[",
    b'"',
    b'\\"',
    b'{"a',
    b"a ",
    b"a:",
    b"1e9,",
    b'{"a":{}},',
    b" ",
]


@pytest.mark.parametrize("head", [b"", b"{", b'{"x":[', b'{"mqSet":[', b'{"consumerDataSet":['])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "size", [MAX_PARSED_BODY_BYTES, MAX_LOOSE_BODY_BYTES, MAX_HEARTBEAT_BYTES, 4 * MAX_HEARTBEAT_BYTES]
)
def test_nothing_takes_long(head: bytes, unit: bytes, size: int) -> None:
    text = head + unit * ((size - len(head)) // len(unit))
    gc.disable()  # a search for garbage among the objects of all tests may take longer than this
    try:
        assert_nothing_takes_long(head, text)
    finally:
        gc.enable()


def assert_nothing_takes_long(head: bytes, text: bytes) -> None:
    for closing in (b"", {b"": b"", b"{": b'"z":0}'}.get(head, b"1]}")):
        began = time.thread_time()
        for kind in (HeartbeatData, LockBatchRequestBody):
            with pytest.raises(BodyError):
                decode_request(kind, text + closing, 2**24)
        assert time.thread_time() - began < 0.5  # it took 1 µs a byte and more
