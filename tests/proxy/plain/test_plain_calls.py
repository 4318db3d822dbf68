"""Calls of gRPC in the compiled core: what both do is the same, byte by byte, for every input."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.plain.endpoints import Endpoints, answers
from tests.proxy.wire import HELLO, data, headers, javas_headers, prefixed

from cometmq.core import CORE
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.hpack import encode_headers
from cometmq.proxy.protocol import v2
from cometmq.remoting.bodies import TopicConfig
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")


def message(number: int = 1, **changed: Any) -> v2.Message:
    """A message as Java's client makes it; ``changed`` has other fields of its system properties, or of itself."""
    made = v2.Message(body=changed.pop("body", b"hello %d" % number))
    made.topic.name = changed.pop("topic", "T")
    made.topic.resource_namespace = changed.pop("namespace", "")
    made.user_properties.update(changed.pop("user", {"user": "value"}))
    system = made.system_properties
    values: dict[str, Any] = {
        "message_id": f"01{number:032X}",
        "tag": "TagA",
        "keys": ["key1", f"key{number}"],
        "body_encoding": v2.Encoding.IDENTITY,
        "message_type": v2.MessageType.NORMAL,
        "born_host": "producer-host",
        "born_timestamp": v2.Timestamp(seconds=1_790_000_000, nanos=123_456_789),
        "body_digest": v2.Digest(type=v2.DigestType.CRC32, checksum="1234ABCD"),
        "queue_id": 0,
    } | changed
    for name, value in values.items():
        if value is None:
            continue
        if name == "keys":
            system.keys.extend(value)
        elif isinstance(value, (str, int)):
            setattr(system, name, value)
        else:
            getattr(system, name).CopyFrom(value)
    return made


def request(*messages: v2.Message) -> bytes:
    return v2.SendMessageRequest(messages=messages).SerializeToString()


def call(stream: int, payload: bytes | None = None, **changed: Any) -> bytes:
    """The frames of a SendMessage."""
    return headers(stream, "SendMessage", client="client") + data(
        stream, prefixed(request(message(stream, **changed)) if payload is None else payload)
    )


def block(*fields: tuple[str, str]) -> bytes:
    usual = ((":method", "POST"), (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"))
    return encode_headers(*usual, ("content-type", "application/grpc"), ("x-mq-client-id", "client"), *fields)


def raw(stream: int, flags: int, own: bytes, payload: bytes | None = None) -> bytes:
    """A SendMessage with a header block of its own."""
    body = prefixed(request(message(stream)) if payload is None else payload)
    return frames.frame(frames.HEADERS, flags, stream, own) + data(stream, body)


SYSTEM: dict[str, dict[str, Any]] = {
    "plain": {},
    "no tag": {"tag": None},
    "an empty tag": {"tag": ""},
    "a blank tag": {"tag": " \t"},
    "a tag with a bar": {"tag": "a|b"},
    "a tag with control": {"tag": "a\x7f"},
    "a tag with C1": {"tag": "a\x85"},
    "another script": {"tag": "标签", "keys": ["ключ"], "user": {"имя": "значение"}},
    "letters and another script": {"tag": "a标签", "keys": ["ключ1"], "user": {"имя": "значение"}},
    "a blank and a letter": {"tag": " a "},
    "no keys": {"keys": []},
    "a blank key": {"keys": [" "]},
    "an empty key": {"keys": ["a", ""]},
    "a key with a blank": {"keys": ["a b"]},
    "16 keys": {"keys": [f"k{n}" for n in range(16)]},
    "17 keys": {"keys": [f"k{n}" for n in range(17)]},
    "no id": {"message_id": ""},
    "an id with a blank": {"message_id": "a b"},
    "an id with control": {"message_id": "a\n"},
    "an id of another script": {"message_id": "идентификатор"},
    "a long id": {"message_id": "A" * 256},
    "no host": {"born_host": ""},
    "a host with a separator": {"born_host": "a\x02b"},
    "no time": {"born_timestamp": None},
    "1970": {"born_timestamp": v2.Timestamp()},
    "before 1970": {"born_timestamp": v2.Timestamp(seconds=-1)},
    "negative nanoseconds": {"born_timestamp": v2.Timestamp(seconds=5, nanos=-1)},
    "a far future": {"born_timestamp": v2.Timestamp(seconds=1 << 62)},
    "no encoding": {"body_encoding": 0},
    "gzip": {"body_encoding": v2.Encoding.GZIP},
    "an unknown encoding": {"body_encoding": 9},
    "no type": {"message_type": 0},
    "FIFO without a group": {"message_type": v2.MessageType.FIFO},
    "a group": {"message_type": v2.MessageType.FIFO, "message_group": "g"},
    "a delay": {"message_type": v2.MessageType.DELAY, "delivery_timestamp": v2.Timestamp(seconds=1)},
    "a transaction": {"message_type": v2.MessageType.TRANSACTION},
    "a priority": {"message_type": v2.MessageType.PRIORITY, "priority": 3},
    "a trace": {"trace_context": "context"},
    "an empty trace": {"trace_context": ""},
    "no digest": {"body_digest": None},
    "queue and offset": {"queue_id": 7, "queue_offset": -1, "delivery_attempt": 2},
    "a store host": {"store_host": "h"},
    "no body": {"body": b""},
    "a body of one frame": {"body": b"b" * 15_000},
    "a body of many frames": {"body": b"b" * 60_000},
    "a large body": {"body": b"b" * 300_000},
    "no user properties": {"user": {}},
    "a reserved property": {"user": {"KEYS": "k"}},
    "another reserved property": {"user": {"__SHARDINGKEY": "k"}},
    "a property without value": {"user": {"a": ""}},
    "a property without name": {"user": {"": "a"}},
    "a property with control": {"user": {"a": "b\x01"}},
    "a name with control": {"user": {"a\x02": "b"}},
    "a large property": {"user": {"a": "v" * 16_000}},
    "a property over the limit": {"user": {"a": "v" * 16_385}},
    "a namespace": {"namespace": "space"},
    "another topic": {"topic": "U"},
    "no such topic": {"topic": "none"},
    "a system topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "no topic": {"topic": ""},
    "a FIFO topic": {"topic": "F"},
}

_M = message(3)
_TEXT = _M.SerializeToString()
_ONE = request(_M)


def _field(number: int, payload: bytes) -> bytes:
    head, length = bytes([number << 3 | 2]), len(payload)
    return head + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + payload


PAYLOADS: dict[str, bytes] = {
    "nothing": b"",
    "two": request(message(1), message(2)),
    "three": request(message(1), message(2, tag=None, keys=[]), message(3, user={})),
    "thirty-two": request(*(message(n) for n in range(32))),
    "many frames": request(*(message(n, body=b"b" * 2_000) for n in range(32))),
    "a batch of two topics": request(message(1), message(2, topic="U")),
    "a batch with a delay": request(message(1), message(2, delivery_timestamp=v2.Timestamp(seconds=1))),
    "a batch with gzip": request(message(1), message(2, body_encoding=2)),
    "a batch with a bad one": request(message(1), message(2, tag=" ")),
    "an unknown field": _ONE + b"\x12\x01a",
    "an unknown field of a message": _field(1, _TEXT + b"\x7a\x01a"),
    "an unknown number": _field(1, _TEXT + b"\x78\x01"),
    "a topic twice": _field(1, _TEXT + _field(1, b"\x12\x01U")),
    "a body twice": _field(1, _TEXT + _field(4, b"other")),
    "system twice": _field(1, _TEXT + _field(3, b"\x1a\x01x")),
    "a topic that is not UTF-8": _field(1, _TEXT.replace(b"\x12\x01T", b"\x12\x01\xff")),
    "a topic as a number": _field(1, b"\x08\x01" + _TEXT),
    "cut": _ONE[:-1],
    "cut in the middle": _ONE[: len(_ONE) // 2],
    "a huge length": b"\x0a\xff\xff\xff\xff\x0f" + _TEXT,
    "a longer length": b"\x0a" + bytes([_ONE[1] + 1]) + _ONE[2:],
    "an endless number": b"\x0a" + b"\xff" * 12,
    "a number in more bytes than needed": b"\x8a\x00" + _ONE[1:],
    "field 0": b"\x02\x00" + _ONE,
    "a group": b"\x0b\x0c" + _ONE,
    "zeros": bytes(64),
}

HEADS: dict[str, bytes] = {
    "plain": raw(3, 4, block()),
    "padded headers": frames.frame(frames.HEADERS, 4 | 8, 3, b"\x02" + block() + b"\0\0") + data(3, prefixed(_ONE)),
    "with priority": frames.frame(frames.HEADERS, 4 | 32, 3, bytes(5) + block()) + data(3, prefixed(_ONE)),
    "two frames of headers": frames.frame(frames.HEADERS, 0, 3, block()[:20])
    + frames.frame(frames.CONTINUATION, 4, 3, block()[20:])
    + data(3, prefixed(_ONE)),
    "no client": raw(3, 4, encode_headers((":method", "POST"), (":path", "/a"), ("content-type", "application/grpc"))),
    "another client": raw(3, 4, block(("x-mq-client-id", "other"))),
    "a client twice": raw(3, 4, block(("x-mq-client-id", "client"))),
    "GET": raw(3, 4, block((":method", "GET"))),
    "another path": raw(3, 4, block((":path", "/x"))),
    "no content type": raw(3, 4, block(("content-type", "text/html"))),
    "grpc+proto": raw(3, 4, block(("content-type", "application/grpc+proto"))),
    "many headers": raw(3, 4, block(*((f"h{n}", "v" * 100) for n in range(200)))),
    "a size update": raw(3, 4, b"\x20" + block()),
    "a size update too large": raw(3, 4, b"\x3f\xff\x7f" + block()),
    "header 0": raw(3, 4, b"\x80" + block()),
    "a missing entry": raw(3, 4, b"\xff\x20" + block()),
    "a cut block": raw(3, 4, block()[:-1]),
    "end of stream": frames.frame(frames.HEADERS, 5, 3, block()),
    "an even stream": raw(4, 4, block()),
    "stream 0": raw(0, 4, block()),
    "a stream before": raw(1, 4, block()),
    "a far stream": raw(0x7FFFFFFF, 4, block()),
    "a reserved bit": raw(0x80000003, 4, block()),
    "padded data": frames.frame(frames.HEADERS, 4, 3, block())
    + frames.frame(frames.DATA, 1 | 8, 3, b"\x01" + prefixed(_ONE) + b"\0"),
    "trailers": frames.frame(frames.HEADERS, 4, 3, block())
    + data(3, prefixed(_ONE), ends=False)
    + frames.frame(frames.HEADERS, 5, 3, encode_headers(("a", "b"))),
    "empty data": frames.frame(frames.HEADERS, 4, 3, block())
    + frames.frame(frames.DATA, 0, 3, b"")
    + data(3, prefixed(_ONE)),
    "an empty end": frames.frame(frames.HEADERS, 4, 3, block())
    + data(3, prefixed(_ONE), ends=False)
    + frames.frame(frames.DATA, 1, 3, b""),
    "data in pieces": frames.frame(frames.HEADERS, 4, 3, block())
    + b"".join(frames.frame(frames.DATA, 0, 3, prefixed(_ONE)[at : at + 7]) for at in range(0, len(_ONE) + 5, 7))
    + frames.frame(frames.DATA, 1, 3, b""),
    "a ping between": frames.frame(frames.HEADERS, 4, 3, block())
    + frames.frame(frames.PING, 0, 0, b"12345678")
    + data(3, prefixed(_ONE)),
    "compressed": frames.frame(frames.HEADERS, 4, 3, block()) + data(3, b"\1" + prefixed(_ONE)[1:]),
    "another length": frames.frame(frames.HEADERS, 4, 3, block()) + data(3, prefixed(_ONE) + b"x"),
    "two messages": frames.frame(frames.HEADERS, 4, 3, block()) + data(3, prefixed(_ONE) * 2),
    "too short": frames.frame(frames.HEADERS, 4, 3, block()) + data(3, b"\0\0"),
    "a large frame": frames.HEAD.pack(0x100, 0, frames.HEADERS, 4, 3) + bytes(70_000),
    "another method": headers(3, "Heartbeat", client="client") + data(3, prefixed(b"")),
    "a small window": frames.settings({frames.INITIAL_WINDOW_SIZE: 10})
    + raw(3, 4, block())
    + frames.window_update(3, 999),
}
TAKEN = {
    "plain", "no tag", "letters and another script", "a blank and a letter",
    "no keys", "a key with a blank", "no host", "1970",
    "no encoding", "no type", "a trace", "an empty trace", "no digest", "queue and offset", "a body of one frame",
    "a body of many frames", "no user properties", "two", "three", "thirty-two", "many frames", "a client twice",
    "grpc+proto", "a far stream", "a reserved bit", "a size update", "an empty end", "data in pieces",
    "a large property", "a number in more bytes than needed",
}  # fmt: skip
"""The cases that the core takes."""


async def opened(directory: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Endpoints:
    pair = Endpoints(directory, **options)
    await pair.start(monkeypatch)
    for side in pair.sides:
        for topic, kind in (("T", "NORMAL"), ("U", "NORMAL"), ("F", "FIFO")):
            side.broker.topics.put(
                TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, attributes={"+message.type": kind})
            )
    assert pair.open() == 0
    return pair


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoints:
    return await opened(tmp_path, monkeypatch)


async def prepare(pair: Endpoints, connection: int = 0) -> int:
    """Send to all queues of the topic, so that the core knows them; return the next stream."""
    pair.send(connection, HELLO)
    for stream in range(1, 11, 2):
        pair.send(connection, call(stream))
        await pair.settle()
    return 11


@pytest.mark.parametrize("name", SYSTEM)
async def test_every_message_is_stored_and_answered_as_by_python(pair: Endpoints, name: str) -> None:
    stream = await prepare(pair)
    taken = pair.taken
    pair.send(0, call(stream, **SYSTEM[name]))
    await pair.settle(name)  # otherwise the core stores the second message first: calls have no order
    pair.send(0, call(stream + 2))
    await pair.settle(name)
    assert pair.taken - taken == (2 if name in TAKEN else 1)
    await pair.end()


async def test_metrics_count_every_call_under_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await opened(tmp_path, monkeypatch, metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
    stream = await prepare(pair)
    taken = pair.taken
    for at, payload in enumerate((PAYLOADS["two"], PAYLOADS["thirty-two"], None)):
        pair.send(0, call(stream + 2 * at, payload))
        await pair.settle()
    assert pair.taken - taken == 3
    assert answers(pair.python.broker) == {("remoting", "send_message_v2", "success", "false", "success"): 8}
    await pair.end()


@pytest.mark.parametrize("name", PAYLOADS)
async def test_every_request_is_stored_and_answered_as_by_python(pair: Endpoints, name: str) -> None:
    stream = await prepare(pair)
    taken = pair.taken
    pair.send(0, call(stream, PAYLOADS[name]))
    await pair.settle(name)
    pair.send(0, call(stream + 2))
    await pair.settle(name)
    assert pair.taken - taken == (2 if name in TAKEN else 1)
    await pair.end()


@pytest.mark.parametrize("name", HEADS)
async def test_every_frame_is_understood_as_by_python(pair: Endpoints, name: str) -> None:
    await prepare(pair)
    other = pair.open()
    pair.send(other, HELLO + call(1))
    await pair.settle()
    taken = pair.taken
    pair.send(other, HEADS[name])
    await pair.settle(name)
    assert (pair.taken > taken) == (name in TAKEN)
    pair.send(0, call(101))
    await pair.settle(name)
    await pair.end()


def _cut(data: bytes, random_: random.Random) -> list[bytes]:
    pieces = []
    while data:
        size = random_.randrange(1, 190)  # no two whole calls
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def _spoilt(data: bytes, random_: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(random_.randrange(1, 4)):
        spoilt[random_.randrange(len(spoilt))] = random_.randrange(256)
    return bytes(spoilt)


@pytest.mark.parametrize("seed", range(6))
async def test_streams_of_calls_in_any_pieces_and_with_damage(pair: Endpoints, seed: int) -> None:
    random_ = random.Random(seed)
    await prepare(pair)
    for _ in range(8):
        connection = pair.open()
        pair.send(connection, HELLO + call(1))
        await pair.settle()
        calls = []
        for stream in range(3, 43, 2):
            kind = random_.choice((SYSTEM, PAYLOADS))
            name = random_.choice(sorted(kind))
            made = call(stream, PAYLOADS[name]) if kind is PAYLOADS else call(stream, **SYSTEM[name])
            calls.append(_spoilt(made, random_) if random_.random() < 0.1 else made)
        for piece in _cut(b"".join(calls), random_):
            pair.send(connection, piece)
            await pair.settle((seed, calls))
    await pair.end()


async def test_calls_of_javas_client_with_its_table(pair: Endpoints) -> None:
    stream = await prepare(pair)
    connection = pair.open()
    pair.send(connection, HELLO)
    for number in range(1, 201, 2):
        own = javas_headers(number, "SendMessage", "client")
        pair.send(connection, own + data(number, prefixed(request(message(number)))))
        if number % 20 == 1:
            await pair.settle(number)
    await pair.settle()
    assert pair.taken >= 90
    pair.send(0, call(stream))
    await pair.settle()
    await pair.end()


async def test_answers_wait_for_the_windows_of_the_client(pair: Endpoints) -> None:
    await prepare(pair)
    connection = pair.open()
    pair.send(connection, HELLO + call(1))
    await pair.settle()
    # 65,535 bytes of answers, and no update of the connection's window
    for first in range(3, 2_003, 100):
        pair.send(connection, b"".join(call(stream) for stream in range(first, first + 100, 2)))
        await pair.settle(first)
    for _ in range(5):
        pair.send(connection, frames.window_update(0, 20_000))
        await pair.settle()
    assert pair.taken > 500
    await pair.end()


async def test_a_lost_connection_holds_no_answers(pair: Endpoints) -> None:
    await prepare(pair)
    connection = pair.open()
    pair.send(connection, HELLO + call(1))
    await pair.settle()
    for first in range(3, 2_003, 100):  # until the window of the connection is used up
        pair.send(connection, b"".join(call(stream) for stream in range(first, first + 100, 2)))
        await pair.settle(first)
    taken = pair.taken
    pair.send(connection, call(2_003) + call(2_005))
    assert pair.taken == taken + 2
    for _ in range(60):  # the tasks of Python put their messages into the turn, too
        await asyncio.sleep(0)
    for door in pair.doors:
        door.connections[connection].connection_lost(None)
    await pair.settle()
    for door in pair.doors:
        assert door.endpoint.server.unsent.of(door.connections[connection]) == 0
        assert not door.connections[connection].http2.streams
    await pair.end()


async def test_a_turn_that_cannot_be_written_is_refused(pair: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await prepare(pair)

    def fail() -> int:
        raise StoreError("the disk is full")

    for side in pair.sides:
        monkeypatch.setattr(side.broker.store.batch, "commit", fail)
    taken = pair.taken
    pair.send(0, call(stream) + call(stream + 2, PAYLOADS["three"]))
    found = await pair.settle()
    assert pair.taken == taken + 2
    assert b"the disk is full" in found[0][stream]
    for side in pair.sides:
        monkeypatch.delattr(side.broker.store.batch, "commit")
    pair.send(0, call(stream + 4))
    await pair.settle()
    await pair.end()


@pytest.mark.parametrize(
    "change",
    [
        lambda side: side.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)),
        lambda side: side.broker.topics.put(
            TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, attributes={"+message.type": "FIFO"})
        ),
        lambda side: side.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=4)),
        lambda side: side.broker.topics.delete("T"),
    ],
    ids=["fewer queues", "another type", "not writable", "deleted"],
)
async def test_a_topic_that_changes_is_checked_again(pair: Endpoints, change: Callable[[Any], None]) -> None:
    stream = await prepare(pair)
    for side in pair.sides:
        change(side)
    taken = pair.taken
    pair.send(0, call(stream))
    await pair.settle()
    assert pair.taken == taken
    for number in (2, 4):
        pair.send(0, call(stream + number, topic="T" if number == 2 else "U"))
        await pair.settle()
    await pair.end()


async def test_a_client_that_has_left_is_a_new_one(pair: Endpoints) -> None:
    stream = await prepare(pair)
    for door in pair.doors:
        for session in list(door.endpoint.sessions._by_key.values()):
            door.endpoint.sessions.remove(session)
    pair.send(0, call(stream))
    await pair.settle()
    assert [len(door.endpoint.sessions) for door in pair.doors] == [1, 1]
    await pair.end()


async def test_quotas_end_the_path_of_the_core(pair: Endpoints) -> None:
    stream = await prepare(pair)
    pair.send(0, call(stream))
    await pair.settle()
    taken = pair.taken
    for side in pair.sides:
        side.broker.limiter.is_active = True
    pair.send(0, call(stream + 2))
    for side in pair.sides:
        side.broker.limiter.is_active = False
    await pair.settle()
    assert pair.taken == taken
    await pair.end()
