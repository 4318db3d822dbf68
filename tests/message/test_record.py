"""The stored record: Apache's vector, round trips, and damage at every byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core import CORE
from cometmq.message.hosts import decode_host, encode_host, format_address
from cometmq.message.message import MessageExt, _starts_of, split_records
from cometmq.message.properties import decode_properties, encode_properties
from cometmq.message.record import RecordError, body_crc, decode_record, encode_record, iter_records
from cometmq.message.sysflag import COMPRESSED

VECTOR = bytes.fromhex(
    "00000083daa320a769c865ed000000000000000000000000000000000000000000000000000000000000018bcfe568007f0000010000c350"
    "0000018bcfe568017f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d5109546f70696354657374"
    "0011544147530154616741024b455953016b31"
)


def record(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "TopicTest",
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "body": b"Hello RocketMQ",
        "properties_text": "TAGS\x01TagA\x02KEYS\x01k1",
        "born_timestamp": 1700000000000,
        "born_host": encode_host("127.0.0.1", 50000),
        "store_timestamp": 1700000000001,
        "store_host": encode_host("127.0.0.1", 10911),
    }
    return encode_record(**(fields | changes))  # type: ignore[arg-type]


def test_the_vector_of_the_reference_is_written_byte_for_byte() -> None:
    assert record() == VECTOR
    assert body_crc(b"Hello RocketMQ") == 1774740973


hosts = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535)).map(lambda host: encode_host(*host))
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(
    queue_id=int32,
    queue_offset=int64,
    physical_offset=int64,
    flag=int32,
    born_timestamp=int64,
    store_timestamp=int64,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
    body=st.binary(max_size=300),
    topic=st.text("abc%|_-Z9", min_size=1, max_size=127),
    properties_text=st.text(max_size=100),
)
def test_a_record_reads_back_as_it_was_written(**fields: object) -> None:
    read = decode_record(record(**fields))
    assert {name: getattr(read, name) for name in fields} == fields
    (lazy,) = split_records(record(**fields))
    for name in ("queue_id", "queue_offset", "flag", "born_timestamp", "store_timestamp", "reconsume_times", "body"):
        assert getattr(lazy, name) == fields[name]
    assert lazy.stored_topic == fields["topic"]
    assert lazy.properties_text == fields["properties_text"]
    assert lazy.born_host == format_address(*decode_host(read.born_host))
    assert lazy.store_host == format_address(*decode_host(read.store_host))
    assert lazy.offset_msg_id == read.msg_id


def test_a_record_cut_at_any_byte_is_refused() -> None:
    for end in range(len(VECTOR)):
        with pytest.raises(RecordError):
            decode_record(VECTOR[:end])


@pytest.mark.parametrize("at", range(len(VECTOR)))
def test_a_record_with_one_byte_changed_is_refused_or_read_without_error(at: int) -> None:
    damaged = bytearray(VECTOR)
    damaged[at] ^= 0xFF
    try:
        read = decode_record(damaged)
    except RecordError:
        return
    # Only fields that carry no check of their own may differ silently.
    assert read.size == len(VECTOR)
    assert read.body == b"Hello RocketMQ"


@given(st.binary(max_size=400))
def test_garbage_is_refused_never_crashes(garbage: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(b"\0" + garbage)
    try:
        list(iter_records(VECTOR + garbage))
    except RecordError:
        return
    assert garbage == b""


def test_a_pull_body_splits_into_its_messages() -> None:
    data = b"".join(record(queue_offset=n, body=b"%d" % n) for n in range(5))
    assert [(m.queue_offset, m.body) for m in split_records(data)] == [(n, b"%d" % n) for n in range(5)]
    with pytest.raises(RecordError):
        split_records(data[:-1])


@pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")
@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3), st.integers(0, 9))
def test_the_compiled_core_finds_the_same_messages(count: int, damage: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(VECTOR * count)
    for at, value in damage:
        if at < len(data):
            data[at] = value
    body = bytes(data[: len(data) - cut] if cut > 6 else data)
    assert CORE is not None
    try:
        expected = _starts_of(body)
    except RecordError:
        expected = None
    assert CORE.message_starts(body) == expected
    assert CORE.message_starts(bytearray(body)) is None


def test_a_topic_or_properties_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(ValueError, match="127"):
        record(topic="x" * 128)
    with pytest.raises(ValueError, match="32,767"):
        record(properties_text="x" * 32_768)


def test_a_retried_message_shows_its_original_topic() -> None:
    message = MessageExt(record(topic="%RETRY%g", properties_text="RETRY_TOPIC\x01Orders\x02KEYS\x01a b"), 0)
    assert (message.topic, message.stored_topic, message.keys) == ("Orders", "%RETRY%g", ("a", "b"))


def test_a_damaged_body_fails_its_check_only_when_checked() -> None:
    damaged = bytearray(VECTOR)
    damaged[88] ^= 1
    message = MessageExt(bytes(damaged), 0)
    assert message.body != b"Hello RocketMQ"
    with pytest.raises(RecordError, match="CRC"):
        message.check()


def test_a_body_flagged_as_packed_is_unpacked_on_reading() -> None:
    import zlib

    assert MessageExt(record(body=zlib.compress(b"x" * 99), sys_flag=COMPRESSED), 0).body == b"x" * 99


text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(text, st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1)))
def test_properties_read_back_as_written(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties
    assert decode_properties(encode_properties(properties).removesuffix("\x02")) == properties


def test_properties_without_name_or_value_vanish() -> None:
    assert decode_properties("A\x01\x02\x01b\x02c\x02D\x01e\x01f") == {"D": "e\x01f"}


@pytest.mark.parametrize("bad", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}])
def test_properties_that_could_not_be_read_back_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="contains a separator"):
        encode_properties(bad)
