"""Frames and commands: golden frames of Apache RocketMQ, any cut of the stream, lying lengths."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.limits import MAX_FRAME_BYTES
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import JSON, ROCKETMQ, Frame, FrameDecoder, FrameError, encode_frame, whole_frame
from cometmq.remoting.headers import HeaderError
from cometmq.remoting.signing import Credentials

JSON_VECTOR_HEADER = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)
BINARY_VECTOR = bytes.fromhex(
    "0000002d010000290069000199000000070000000000000000000000140005746f70696300000009546f70696354657374".replace(
        " ", ""
    )
)


def test_the_json_vector_is_written_byte_for_byte() -> None:
    command = RemotingCommand(code=105, opaque=7, language="JAVA", version=409, ext_fields={"topic": "TopicTest"})
    assert command.encode() == bytes.fromhex("0000008700000083") + JSON_VECTOR_HEADER


def test_the_binary_vector_is_written_byte_for_byte() -> None:
    command = RemotingCommand(
        code=105, opaque=7, language="JAVA", version=409, ext_fields={"topic": "TopicTest"}, serialize_type=ROCKETMQ
    )
    assert command.encode() == BINARY_VECTOR
    assert decode_command(BINARY_VECTOR) == command


def test_every_golden_frame_decodes_and_encodes_again_to_the_same_meaning(golden_frames: list[dict[str, Any]]) -> None:
    seen = 0
    for line in golden_frames:
        if "frame_hex" not in line:
            continue
        raw = bytes.fromhex(line["frame_hex"])
        command = decode_command(raw)
        recorded = line["header"]
        assert command.code == line["code"] == recorded["code"]
        assert command.opaque == recorded["opaque"]
        assert command.flag == recorded["flag"]
        assert command.version == recorded["version"]
        assert command.remark == recorded.get("remark")
        assert command.ext_fields == (recorded.get("extFields") or {})
        assert len(command.body) == line.get("body_length", 0)
        assert command.serialize_type == (ROCKETMQ if line["serialize"] == "ROCKETMQ" else JSON)
        assert decode_command(command.encode()) == command
        if line["serialize"] == "ROCKETMQ":
            assert len(command.encode()) == len(raw)
        seen += 1
    assert seen > 2000


def test_golden_frames_byte_by_byte_give_the_same_as_whole(golden_frames: list[dict[str, Any]]) -> None:
    raws = [bytes.fromhex(line["frame_hex"]) for line in golden_frames if "frame_hex" in line][:300]
    whole = FrameDecoder().feed(b"".join(raws))
    one_by_one = FrameDecoder()
    cut = [frame for raw in raws for byte in raw for frame in one_by_one.feed(bytes((byte,)))]
    assert cut == whole
    assert len(whole) == len(raws)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    RemotingCommand,
    code=st.integers(0, 0x7FFF),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(["JAVA", "GO", "PYTHON", "CPP"]),
    version=st.integers(0, 0x7FFF),
    remark=st.none() | texts.filter(bool),
    ext_fields=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=100),
    serialize_type=st.sampled_from([JSON, ROCKETMQ]),
)


@given(st.lists(commands, max_size=5), st.data())
def test_commands_survive_any_cut_of_the_stream(sent: list[RemotingCommand], data: st.DataObject) -> None:
    stream = b"".join(command.encode() for command in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += decoder.feed(stream[begin:end])
    assert [decode_command(frame) for frame in frames] == sent
    assert decoder.pending == 0


@given(
    st.lists(st.tuples(st.binary(min_size=0, max_size=40), st.integers(0, 200_000)), min_size=1, max_size=4),
    st.lists(st.integers(1, 90_000), max_size=12),
    st.booleans(),
)
def test_large_frames_survive_any_cut_of_the_stream(
    sent: list[tuple[bytes, int]], cuts: list[int], ask_each_time: bool
) -> None:
    frames = [Frame(JSON, header, bytes([n]) * size) for n, (header, size) in enumerate(sent)]
    stream = b"".join(encode_frame(JSON, frame.header, len(frame.body)) + frame.body for frame in frames)
    decoder = FrameDecoder()
    got = []
    at = 0
    for size in [*cuts, len(stream)]:
        decoder.push(stream[at : at + size])
        at += size
        while ask_each_time and (frame := decoder.next()) is not None:
            got.append(frame)
        assert decoder.pending == min(at, len(stream)) - sum(8 + len(f.header) + len(f.body) for f in got)
    while (frame := decoder.next()) is not None:
        got.append(frame)
    assert got == frames
    assert decoder.pending == 0


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 90_000)), max_size=12),
    st.integers(0, 15),
)
def test_frames_that_are_taken_survive_any_cut_of_the_stream(sizes: list[int], cuts: list[int], chosen: int) -> None:
    """A taker gets each complete frame as it stands in the stream, also a large one that came in pieces."""
    frames = [Frame(JSON, b"%d" % n, bytes([n]) * size) for n, size in enumerate(sizes)]
    parts = [encode_frame(JSON, frame.header, len(frame.body)) + frame.body for frame in frames]
    stream = b"".join(parts)
    got: list[Frame] = []

    def take(data: bytes, at: int) -> int:
        for n, part in enumerate(parts):
            if chosen >> n & 1 and data.startswith(part, at):
                got.append(frames[n])
                at += len(part)
        return at

    decoder = FrameDecoder()
    at = 0
    for size in [*cuts, len(stream)]:
        decoder.push(stream[at : at + size])
        at += size
        decoder.pass_to(take)
        while (frame := decoder.next()) is not None:
            assert not chosen >> int(frame.header) & 1
            got.append(frame)
            decoder.pass_to(take)
    assert got == frames
    assert decoder.pending == 0


def test_a_large_frame_in_crumbs_takes_no_more_memory_than_its_bytes() -> None:
    stream = encode_frame(JSON, b"{}", 300_000) + bytes(300_000)
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(0, 300_000, 10):
            decoder.push(stream[at : at + 10])
            assert decoder.next() is None
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 3 * len(stream)
    decoder.push(stream[300_000:])
    assert decoder.next() == Frame(JSON, b"{}", bytes(300_000))


@given(commands, st.data())
def test_a_whole_frame_is_what_the_decoder_returns_and_anything_else_is_left_to_it(
    command: RemotingCommand, data: st.DataObject
) -> None:
    raw = bytearray(command.encode())
    raw += data.draw(st.binary(max_size=9))
    for at in data.draw(st.lists(st.integers(0, 7), max_size=2)):
        raw[at] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.sampled_from([len(raw), len(raw), 0, 3, 7, 8, len(raw) - 1])) :]
    decoder = FrameDecoder()
    try:
        frames = decoder.feed(bytes(raw))
    except FrameError:
        frames = []
    is_alone = len(frames) == 1 and not decoder.pending
    assert whole_frame(bytes(raw)) == (frames[0] if is_alone else None)


@pytest.mark.parametrize("left", [0, 3, 9, 100])
def test_no_more_is_kept_than_what_is_pending(left: int) -> None:
    """However many connections there are: a large read must not stay in memory for the little that is left of it."""
    frame = RemotingCommand(code=1, body=bytes(4096)).encode()
    decoders = [FrameDecoder() for _ in range(100)]
    tracemalloc.start()
    try:
        for decoder in decoders:
            assert len(decoder.feed(frame * 50 + frame[:left])) == 50
            assert decoder.pending == left
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    for decoder in decoders:
        assert len(decoder.feed(frame[left:])) == 1


@pytest.mark.parametrize(
    "bad",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\0\0\0\3",
        b"\0\0\0\x08\0\0\0\x09",
        b"\0\0\0\x08\x02\0\0\x04",
        b"\0\0\0\x08\x16\x03\x01\x00",
        b"GET / HTTP/1.1\r\n",
    ],
    ids=["over the limit", "negative", "too short", "lying header length", "unknown type", "TLS", "HTTP"],
)
def test_bytes_that_cannot_be_a_frame_are_refused_as_soon_as_they_are_seen(bad: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(bad)
    one_by_one = FrameDecoder()

    def trickle() -> None:
        for byte in bad:
            one_by_one.feed(bytes((byte,)))

    with pytest.raises(FrameError):
        trickle()


@given(st.binary(max_size=200), st.sampled_from([JSON, ROCKETMQ]))
def test_garbage_headers_are_refused_never_crash(header: bytes, serialize_type: int) -> None:
    with pytest.raises(FrameError):
        decode_command(encode_frame(serialize_type, b"\xfe" + header, 0))


def test_a_header_nested_too_deeply_is_refused() -> None:
    with pytest.raises(FrameError):
        decode_command(encode_frame(JSON, b'{"code":1,"extFields":' + b"[" * 100_000, 0))


def test_too_many_fields_are_refused() -> None:
    fields = {f"f{n}": "x" for n in range(300)}
    for serialize_type in (JSON, ROCKETMQ):
        with pytest.raises(FrameError, match="256"):
            decode_command(RemotingCommand(code=1, ext_fields=fields, serialize_type=serialize_type).encode())


def test_fields_written_as_numbers_booleans_and_null_become_text() -> None:
    header = b'{"code":310,"extFields":{"d":4,"k":true,"j":null,"b":"T","x":1.5},"flag":0,"language":7,"opaque":1}'
    command = decode_command(encode_frame(JSON, header, 0))
    assert command.ext_fields == {"d": "4", "k": "true", "b": "T", "x": "1.5"}
    assert command.language == "OTHER"


def test_a_code_that_does_not_fit_a_binary_header_is_refused() -> None:
    with pytest.raises(ValueError, match="use JSON"):
        RemotingCommand(code=200050, serialize_type=ROCKETMQ).encode()


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@pytest.mark.parametrize("account", [None, Credentials("account", "secret")])
def test_a_text_that_is_none_is_refused_before_it_is_sent(serialize_type: int, account: Credentials | None) -> None:
    request = RemotingCommand(12, ext_fields={"key": "a\udcff", "topic": "T"}, serialize_type=serialize_type)

    def encode() -> None:
        if account is not None:
            account.sign(request)
        request.encode()

    with pytest.raises(HeaderError, match=r"contains '.udcff', which is only half of a character") as caught:
        encode()
    assert caught.value.next_step


TEXTS_AS_APACHE_READS_THEM = [
    ("中".encode("gbk"), "\ufffd\ufffd"),
    (b"\xff", "\ufffd"),
    (b"a\xed\xa0\xbd", "a\ufffd"),
    (b"\xed\xa0\xbd\xed\xb8\x80", "\ufffd\ufffd"),
    (b"\xe4\xb8", "\ufffd"),
]
"""Texts of producers, and what a consumer of 4.9.7 got."""


@pytest.mark.parametrize(("sent", "read"), TEXTS_AS_APACHE_READS_THEM)
def test_bytes_that_are_no_text_are_read_as_apache_reads_them(sent: bytes, read: str) -> None:
    in_json = b'{"code":310,"extFields":{"i":"%b","a":7},"opaque":3}' % sent
    command = decode_command(Frame(JSON, in_json, b""))
    assert (command.ext_fields, command.opaque) == ({"i": read, "a": "7"}, 3)
    fields = b"".join((b"\0\1i", len(sent).to_bytes(4, "big"), sent))
    in_binary = b"".join(
        (bytes.fromhex("0136 00 0000 00000003 00000000 00000000"), len(fields).to_bytes(4, "big"), fields)
    )
    command = decode_command(Frame(ROCKETMQ, in_binary, b""))
    assert (command.ext_fields, command.opaque) == ({"i": read}, 3)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (r"a\ud83d", "a?"),
        (r"\uDE00\uD83D", "??"),
        (r"\ud83d\u0041", "?A"),
        (r"\ud83d\ud83d\ude00", "?\U0001f600"),
        (r"\\ud83d", "\\ud83d"),
        (r"\\\ud83d", "\\?"),
        (r"\ud83d\ude00", "\U0001f600"),
    ],
)
def test_halves_of_characters_in_escapes_are_read_as_apache_stores_them(sent: str, read: str) -> None:
    """JavaScript writes them so where an emoji is cut."""
    header = f'{{"code":310,"extFields":{{"i":"{sent}"}},"opaque":3}}'.encode()
    assert decode_command(Frame(JSON, header, b"")).ext_fields == {"i": read}


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@pytest.mark.parametrize("code", [11, 310])
def test_the_code_of_the_next_frame_is_seen_once_its_header_has_arrived(serialize_type: int, code: int) -> None:
    command = RemotingCommand(code=code, ext_fields={"topic": "T"}, serialize_type=serialize_type)
    decoder = FrameDecoder()
    decoder.push(RemotingCommand(code=99).encode() + command.encode()[:7])
    decoder.next()
    assert decoder.next_code() == -1
    decoder.push(command.encode()[7:])
    assert decoder.next_code() == code
    assert decoder.next() is not None
    assert decoder.next_code() == -1


def test_the_code_of_the_next_frame_is_seen_behind_other_fields() -> None:
    decoder = FrameDecoder()
    for header, code in ((b'{"extFields":{"a":"\\"code\\":5"},"code": 11}', 11), (b"{}", -1), (b"{", -1)):
        decoder.push(encode_frame(JSON, header, 0))
        assert decoder.next_code() == code
        decoder.next()
