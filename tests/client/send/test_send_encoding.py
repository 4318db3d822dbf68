from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.errors import IllegalMessageError
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.encoding import SendEncoder
from cometmq.message.batch import decode_batch
from cometmq.message.compression import decompress
from cometmq.message.message import Message
from cometmq.message.properties import RESERVED_NAMES, decode_properties
from cometmq.message.sysflag import CompressionType
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.headers import SendMessageRequestHeaderV2, to_ext
from cometmq.remoting.signing import Credentials

QUEUE = MessageQueue("Topic", "broker-a", 3)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)
names = text.filter(lambda name: name not in RESERVED_NAMES)


def encoder(
    compression: CompressionType = CompressionType.ZLIB,
    max_bytes: int = 4 << 20,
    credentials: Credentials | None = None,
) -> SendEncoder:
    config = ProducerConfig(max_message_bytes=max_bytes, compression=compression)
    return SendEncoder('group "quoted"', config, credentials)


@given(
    st.dictionaries(names, text, max_size=4), st.none() | text, st.binary(min_size=1, max_size=50), st.integers(0, 99)
)
def test_a_frame_says_what_its_typed_header_says(
    properties: dict[str, str], tag: str | None, body: bytes, flag: int
) -> None:
    encoding = encoder()
    message = Message("Topic", body, tags=tag, properties=properties, flag=flag)
    properties_text = encoding.properties_text(message, "AB" * 16)
    code = int(RequestCode.SEND_MESSAGE_V2)
    command = decode_command(encoding.frame(code, QUEUE, 77, body, properties_text, 0, flag, 1_700_000_000_000))
    assert (command.code, command.opaque, command.flag, command.body) == (code, 77, 0, body)
    expected = encoding.header(code, QUEUE, properties_text, 0, flag, 1_700_000_000_000)
    header = command.header(SendMessageRequestHeaderV2)
    assert header == expected
    stored = decode_properties(header.properties or "")
    assert stored == {
        **properties,
        **({"TAGS": tag} if tag else {}),
        "UNIQ_KEY": "AB" * 16,
        "WAIT": "true",
    }


@given(
    st.dictionaries(names, text, max_size=3),
    st.binary(min_size=1, max_size=50),
    st.none() | text,
    st.sampled_from([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]),
)
def test_a_signed_frame_is_the_signed_typed_header(
    properties: dict[str, str], body: bytes, token: str | None, code: RequestCode
) -> None:
    credentials = Credentials('account "quoted"', "sécret", token)
    encoding = encoder(credentials=credentials)
    properties_text = encoding.properties_text(Message("Topic", body, properties=properties), "AB" * 16)
    for born in (1_700_000_000_000, 1_700_000_000_001):
        frame = encoding.frame(code, QUEUE, 77, body, properties_text, 5, 6, born)
        header = encoding.header(code, QUEUE, properties_text, 5, 6, born)
        expected = RemotingCommand(code=code, opaque=77, ext_fields=to_ext(header), body=body)
        found = decode_command(frame)
        credentials.sign(expected, found.ext_fields["AccessAt"])
        assert found == expected


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD])
def test_large_bodies_are_packed_as_the_flag_says(kind: CompressionType) -> None:
    body = b"a long body " * 1000
    packed, sys_flag = encoder(kind).packed(Message("Topic", body))
    assert len(packed) < len(body)
    assert sys_flag == 0x1 | kind << 8
    assert decompress(packed, sys_flag) == body


def test_small_bodies_are_sent_as_they_are() -> None:
    assert encoder().packed(Message("Topic", b"x" * 4096)) == (b"x" * 4096, 0)


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_large_body_that_does_not_get_smaller_is_sent_as_it_is(kind: CompressionType) -> None:
    body = random.Random(1).randbytes(8 << 10)
    assert encoder(kind).packed(Message("Topic", body)) == (body, 0)


def test_a_batch_body_holds_each_message_with_its_own_key() -> None:
    pieces = decode_batch(
        encoder().batch_body([Message("T", b"1", flag=9), Message("T", b"2", keys=["k"])], ["A", "B"])
    )
    assert [(piece.body, piece.flag) for piece in pieces] == [(b"1", 9), (b"2", 0)]
    assert decode_properties(pieces[1].properties_text) == {"KEYS": "k", "UNIQ_KEY": "B", "WAIT": "true"}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("Topic", b""), "no body"),
        (Message("Topic", b"x" * 101), "101 bytes"),
        (Message("", b"x"), "blank"),
        (Message("a/b", b"x"), "illegal characters"),
        (Message("x" * 128, b"x"), "longer"),
    ],
)
def test_what_no_broker_takes_is_refused_with_the_next_step(message: Message, says: str) -> None:
    with pytest.raises(IllegalMessageError, match=says) as caught:
        encoder(max_bytes=100).check(message)
    assert caught.value.code == 13
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"KEYS": "x"}, "reserved"),
        ({"a": "x\x02"}, "contains a separator"),
        ({"a": "x" * 32_768}, "exceed the limit of 32767"),
        ({"b": "x", "a": ""}, "an empty name or value"),
        ({"a": None}, "an empty name or value"),
        ({"": "x"}, "an empty name"),
    ],
)
def test_properties_that_cannot_be_stored_are_refused(properties: dict[str, Any], says: str) -> None:
    with pytest.raises(IllegalMessageError, match=says):
        encoder().properties_text(Message("Topic", b"x", properties=properties), "AB")


@pytest.mark.parametrize("part", ["tags", "keys", "value", "name"])
def test_half_of_a_surrogate_pair_is_refused_in_each_part(part: str) -> None:
    half = "a\ud83d"
    messages = {
        "tags": Message("Topic", b"x", tags=half),
        "keys": Message("Topic", b"x", keys=[half]),
        "value": Message("Topic", b"x", properties={"a": half}),
        "name": Message("Topic", b"x", properties={half: "a"}),
    }
    message = messages[part]
    for encode in (
        lambda: encoder().properties_text(message, "AB"),
        lambda: encoder().piece_bytes(message),
        lambda: encoder().batch_body([message], ["AB"]),
    ):
        with pytest.raises(IllegalMessageError, match=r"contain '.ud83d', which is only half of a character"):
            encode()


@pytest.mark.parametrize("body", ["text", None, 7])
def test_a_body_that_is_no_bytes_is_told(body: object) -> None:
    with pytest.raises(IllegalMessageError, match=f"the body is {type(body).__name__}, not bytes"):
        encoder().check(Message("Topic", body))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["flag", "delay_level"])
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, "1", 1.5])
def test_a_number_that_no_record_holds_is_told(name: str, number: object) -> None:
    given: dict[str, Any] = {name: number}
    with pytest.raises(IllegalMessageError, match=f"the {name.replace('_', ' ')} must not be .*32-bit integer"):
        encoder().check(Message("Topic", b"x", **given))


@pytest.mark.parametrize("given", [{"properties": {"price": 7}}, {"keys": [7]}, {"tags": 7}])
def test_a_property_that_is_no_text_is_told(given: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessageError, match="tags, keys and properties must be text"):
        encoder().properties_text(Message("Topic", b"b", **given), "AB" * 16)
