"""AckMessage calls in the compiled core: what both do is the same, byte by byte, for every input."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proxy.plain.consumer import INVISIBLE_S, RECEIVED, Consumer, Given, ack, changed, request
from tests.proxy.plain.endpoints import Endpoints
from tests.proxy.plain.test_plain_calls import call as send
from tests.proxy.wire import HELLO, data, headers, javas_headers, prefixed

from cometmq.core import CORE
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode, answers_in
from cometmq.proxy.protocol import v2
from cometmq.remoting.bodies import TopicConfig
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")


@pytest.fixture
async def consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    monkeypatch.setattr("cometmq.proxy.rpc.pace.GRPC_ROUND_SECONDS", math.inf)  # no call waits for the processor
    pair = Endpoints(tmp_path)
    await pair.start(monkeypatch)
    for side in pair.sides:
        for topic in ("T", "U"):  # of one queue, since a pop begins with any
            side.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
    assert pair.open() == 0
    return Consumer(pair)


REQUESTS: dict[str, Callable[[list[Given]], bytes]] = {
    "one": lambda held: request(held[0]),
    "all": lambda held: request(*held),
    "nothing": lambda held: b"",
    "no entries": lambda held: request(),
    "no id": lambda held: request(held[0]._replace(id="")),
    "an id of another script": lambda held: request(held[0]._replace(id="идентификатор")),
    "an id with control": lambda held: request(held[0]._replace(id="a\n\0")),
    "a long id": lambda held: request(held[0]._replace(id="A" * 5_000)),
    "an answer of one frame": lambda held: request(held[0]._replace(id="A" * 16_200)),
    "an answer of two frames": lambda held: request(held[0]._replace(id="A" * 17_000)),
    "no handle": lambda held: request(held[0]._replace(handle="")),
    "the same twice": lambda held: request(held[0], held[0]),
    "a handle without log offset": lambda held: request(
        held[0]._replace(handle=" ".join(held[0].handle.split(" ")[:8]))
    ),
    "more parts": lambda held: request(held[0]._replace(handle=held[0].handle + " x  y")),
    "seven parts": lambda held: request(held[0]._replace(handle=" ".join(held[0].handle.split(" ")[:7]))),
    "no blank after the parts": lambda held: request(changed(held[0], 7, held[0].handle.split(" ")[7] + "x")),
    "another start": lambda held: request(changed(held[0], 0, "77")),
    "a negative start": lambda held: request(changed(held[0], 0, "-77")),
    "a start that is no number": lambda held: request(changed(held[0], 0, "x")),
    "another pop time": lambda held: request(changed(held[0], 1, "1" + held[0].handle.split(" ")[1])),
    "a pop time of 19 digits": lambda held: request(changed(held[0], 1, "9" * 19)),
    "a pop time of 20 digits": lambda held: request(changed(held[0], 1, "9" * 20)),
    "a pop time with zeros": lambda held: request(changed(held[0], 1, "000" + held[0].handle.split(" ")[1])),
    "Arabic digits": lambda held: request(changed(held[0], 1, "١٢٣")),
    "an expired one": lambda held: request(changed(held[0], 2, "0")),
    "a negative time": lambda held: request(changed(held[0], 2, "-5")),
    "a revive queue of FIFO": lambda held: request(changed(held[0], 3, "999")),
    "a retry topic": lambda held: request(changed(held[0], 4, "1")),
    "a retry topic of RocketMQ 5": lambda held: request(changed(held[0], 4, "2")),
    "another kind of topic": lambda held: request(changed(held[0], 4, "3")),
    "another broker": lambda held: request(changed(held[0], 5, "broker-b")),
    "a broker with a blank": lambda held: request(changed(held[0], 5, "broker\x1fa")),
    "no broker": lambda held: request(changed(held[0], 5, "")),
    "another queue": lambda held: request(changed(held[0], 6, "1" if held[0].handle.split(" ")[6] == "0" else "0")),
    "no such queue": lambda held: request(changed(held[0], 6, "5")),
    "a huge queue": lambda held: request(changed(held[0], 6, "9" * 18)),
    "another offset": lambda held: request(changed(held[0], 7, "9000")),
    "a good one and a bad one": lambda held: request(held[0], changed(held[1], 7, "9000")),
    "a good one and a malformed one": lambda held: request(held[0], changed(held[1], 7, "x")),
    "another topic": lambda held: request(held[0], topic="U"),
    "no such topic": lambda held: request(held[0], topic="none"),
    "a system topic": lambda held: request(held[0], topic="SCHEDULE_TOPIC_XXXX"),
    "a wrong name": lambda held: request(held[0], topic="a b"),
    "no topic": lambda held: request(held[0], topic=""),
    "another group": lambda held: request(held[0], group="H"),
    "a system group": lambda held: request(held[0], group="CID_RMQ_SYS_X"),
    "no group": lambda held: request(held[0], group=""),
    "a namespace": lambda held: request(held[0], namespace="space"),
    "an unknown field": lambda held: request(held[0]) + b"\x22\x01a",
    "the topic twice": lambda held: request(held[0]) + b"\x12\x03\x12\x01T",
    "a lite topic": lambda held: request(held[0]) + b"\x1a\x03\x1a\x01a",
    "an empty entry": lambda held: request(held[0]) + b"\x1a\x00",
    "entries first": lambda held: _entries_first(held[0]),
    "a topic that is not UTF-8": lambda held: request(held[0]).replace(b"\x12\x03\x12\x01T", b"\x12\x03\x12\x01\xff"),
    "an id that is not UTF-8": lambda held: request(held[0]).replace(b"\x0a\x2201", b"\x0a\x22\xff1"),
    "cut": lambda held: request(held[0])[:-1],
    "a huge length": lambda held: b"\x0a\xff\xff\xff\xff\x0f" + request(held[0]),
    "a key of six bytes": lambda held: b"\x8a\x80\x80\x80\x80\x00" + request(held[0])[1:],
    "a key of two bytes": lambda held: b"\x8a\x00" + request(held[0])[1:],
    "zeros": lambda held: bytes(64),
}
TAKEN = {
    "one", "all", "no id", "an id of another script", "an id with control", "a long id", "an answer of one frame",
    "a handle without log offset", "more parts", "another start", "a pop time with zeros", "a revive queue of FIFO",
    "entries first", "a key of two bytes",
}  # fmt: skip
"""The cases that the core takes."""


def _entries_first(given: Given) -> bytes:
    names, whole = request(), request(given)
    assert whole.startswith(names)
    return whole[len(names) :] + names


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_request_is_handled_as_by_python(consumer: Consumer, name: str) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken
    await consumer.acknowledge(name, REQUESTS[name](consumer.held))
    assert pair.taken - taken == (name in TAKEN)
    await consumer.end()


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_request_is_handled_as_by_python_between_others(consumer: Consumer, name: str) -> None:
    await consumer.prepare(12)
    first, second, others = consumer.held[:4], consumer.held[4:8], consumer.held[8:]
    calls = [request(one) for one in others]
    await consumer.acknowledge(name, calls[0], REQUESTS[name](first), calls[1], REQUESTS[name](second), *calls[2:])
    await consumer.end()


async def test_one_block_of_calls_is_answered_in_one_piece(consumer: Consumer) -> None:
    await consumer.prepare(RECEIVED)
    pair = consumer.pair
    taken, put = pair.taken, [side.broker.pops.log.put_entries for side in pair.sides]
    await consumer.acknowledge("32 calls", *(request(one) for one in consumer.held))
    assert pair.taken - taken == RECEIVED
    entries = [side.broker.pops.log.put_entries - before for side, before in zip(pair.sides, put, strict=True)]
    assert entries[0] < entries[1] == RECEIVED
    consumer.held.clear()
    await consumer.end()


async def test_a_message_of_two_calls_is_acknowledged_once(consumer: Consumer) -> None:
    await consumer.prepare(6)
    taken = consumer.pair.taken
    one, two, *others = consumer.held
    await consumer.acknowledge("twice", request(one), request(two), request(one), *(request(one) for one in others))
    assert consumer.pair.taken == taken, "Python handles all calls of that block"
    await consumer.receive(2)
    taken = consumer.pair.taken
    await consumer.acknowledge("later", *(request(one) for one in consumer.held[-2:]))
    assert consumer.pair.taken == taken + 2
    await consumer.end()


async def test_sends_and_acknowledgements_in_any_order(consumer: Consumer) -> None:
    await consumer.prepare(RECEIVED)
    pair = consumer.pair
    random_ = random.Random(7)
    for round_ in range(8):
        calls = []
        for one in consumer.held[:4]:
            if random_.random() < 0.5:
                stream = consumer.next()
                calls.append(send(stream, topic=random_.choice("TU")))
            calls.append(ack(consumer.next(), request(one)))
        consumer.held = consumer.held[4:]
        pair.send(0, b"".join(calls))
        await pair.settle(round_)
    assert pair.taken > RECEIVED
    stored = [[side.broker.store.queue(topic, 0).max_offset() for topic in "TU"] for side in pair.sides]
    assert stored[0] == stored[1]
    assert not any(queue.in_flight for side in pair.sides for queue in side.broker.pops.log.state)
    for door in pair.doors:  # Python stores the sends later than the acknowledgements
        await door.stop()
    for side in pair.sides:
        await side.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_calls_in_any_pieces_and_with_damage(consumer: Consumer, seed: int) -> None:
    random_ = random.Random(seed)
    await consumer.prepare(60)
    pair, held, taken = consumer.pair, consumer.held, consumer.pair.taken
    for _ in range(6):
        connection = pair.open()
        pair.send(connection, HELLO + ack(1, request(held.pop())))
        await pair.settle()
        calls = []
        for stream in range(3, 43, 2):
            kind = random_.choice([name for name in sorted(REQUESTS) if "answer" not in name])
            usual = random_.random() < 0.6
            made = ack(stream, request(random_.choice(held)) if usual else REQUESTS[kind](random_.sample(held, 3)))
            if random_.random() < 0.1:
                spoilt = bytearray(made)
                for _ in range(random_.randrange(1, 4)):
                    spoilt[random_.randrange(len(spoilt))] = random_.randrange(256)
                made = bytes(spoilt)
            calls.append(made)
        stream_bytes = b"".join(calls)
        while stream_bytes:
            size = random_.randrange(1, 900)
            pair.send(connection, stream_bytes[:size])
            await pair.settle((seed, calls))
            stream_bytes = stream_bytes[size:]
    assert pair.taken > taken
    await consumer.end()


async def test_calls_of_javas_client_with_its_table(consumer: Consumer) -> None:
    await consumer.prepare(100)
    pair, taken = consumer.pair, consumer.pair.taken
    connection = pair.open()
    pair.send(connection, HELLO)
    for number, one in enumerate(consumer.held):
        # One of five calls is left to Python with all that are behind it in its block.
        payload = request(one if number % 5 else changed(one, 7, "9000"))
        stream = 2 * number + 1
        pair.send(connection, javas_headers(stream, "AckMessage", "client") + data(stream, prefixed(payload)))
        if number % 8 == 0:
            await pair.settle(number)
    await pair.settle()
    assert pair.taken > taken + 50
    await consumer.end()


@pytest.mark.parametrize("room", [0, 1, 8, 9, 12, 100])
async def test_a_call_of_two_pieces_is_taken_whole(consumer: Consumer, room: int) -> None:
    await consumer.prepare(2)
    pair = consumer.pair
    taken = pair.taken
    for frames_of in (
        [headers(consumer.stream, "AckMessage", client="client"), data(consumer.next(), prefixed(request(held)))]
        for held in consumer.held
    ):
        cut = len(frames_of[0]) + room
        whole = b"".join(frames_of)
        pair.send(0, whole[:cut])
        await pair.settle("the headers")
        pair.send(0, whole[cut:])
        await pair.settle("the data")
    assert pair.taken == taken + 2
    consumer.held.clear()
    await consumer.end()


@pytest.mark.parametrize(
    "between",
    [
        frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.window_update(0, 5),
        frames.frame(frames.DATA, 0, 99, b"x"),
        None,
    ],
    ids=["ping", "window", "data of no stream", "reset"],
)
async def test_other_frames_end_the_wait_for_the_data(consumer: Consumer, between: bytes | None) -> None:
    await consumer.prepare(3)
    pair, stream = consumer.pair, consumer.next()
    taken = pair.taken
    pair.send(0, headers(stream, "AckMessage", client="client"))
    await pair.settle("the headers")
    pair.send(0, frames.reset(stream, ErrorCode.CANCEL) if between is None else between)
    await pair.settle("between")
    pair.send(0, data(stream, prefixed(request(consumer.held[0]))))
    await pair.settle("the data")
    assert pair.taken == taken
    await consumer.end()


async def test_messages_that_are_renewed_are_renewed_no_more(consumer: Consumer) -> None:
    await consumer.prepare(6, auto_renew=True)
    pair = consumer.pair
    taken = pair.taken
    assert [len(door.renewed) for door in pair.doors] == [6, 6]
    await consumer.acknowledge("three", *(request(one) for one in consumer.held[:3]))
    assert [len(door.renewed) for door in pair.doors] == [3, 3]
    assert pair.taken == taken + 3
    for door in pair.doors:
        door.renewed.start()
        door.side.clock.advance(INVISIBLE_S - 5)
    await pair.settle("renewed")
    await consumer.acknowledge("with other handles by now", *(request(one) for one in consumer.held[3:]))
    assert [len(door.renewed) for door in pair.doors] == [0, 0]
    assert pair.taken == taken + 3
    assert not any(queue.in_flight for side in pair.sides for queue in side.broker.pops.log.state)
    consumer.held.clear()
    await consumer.end()


async def test_a_turn_that_cannot_be_written_is_refused(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken

    def fail() -> int:
        raise StoreError("the disk is full")

    for side in pair.sides:
        monkeypatch.setattr(side.broker.store.batch, "commit", fail)
    found = await consumer.acknowledge("full", request(*consumer.held[:2]), request(consumer.held[2]))
    assert pair.taken == taken + 2
    answers = [v2.AckMessageResponse.FromString(payload[5:]) for _, _, payload, _ in answers_in(found)]
    assert [len(answer.entries) for answer in answers] == [2, 1]
    assert all("the disk is full" in entry.status.message for answer in answers for entry in answer.entries)
    for side in pair.sides:
        monkeypatch.delattr(side.broker.store.batch, "commit")
    await consumer.acknowledge("again", request(*consumer.held[:2]), request(consumer.held[2]))
    await consumer.end()


async def test_answers_wait_for_the_windows_of_the_client(consumer: Consumer) -> None:
    await consumer.prepare(300)
    pair = consumer.pair
    connection = pair.open()
    pair.send(connection, HELLO + ack(1, request(consumer.held.pop())))
    await pair.settle()
    taken = pair.taken
    long = [one._replace(id="A" * 1_000) for one in consumer.held]
    for first in range(0, 240, 24):  # 65,535 bytes of answers, and no update of the connection's window
        streams = range(2 * first + 3, 2 * first + 51, 2)
        payloads = (request(one) for one in long[first : first + 24])
        pair.send(connection, b"".join(ack(*of) for of in zip(streams, payloads, strict=True)))
        await pair.settle(first)
    assert pair.doors[0].connections[connection].http2.streams
    for _ in range(15):
        pair.send(connection, frames.window_update(0, 20_000))
        await pair.settle()
    assert not pair.doors[0].connections[connection].http2.streams
    assert pair.taken == taken + 240
    await consumer.end()


async def test_a_small_window_is_left_to_python(consumer: Consumer) -> None:
    await consumer.prepare(3)
    pair, taken = consumer.pair, consumer.pair.taken
    pair.send(0, frames.settings({frames.INITIAL_WINDOW_SIZE: 10_000}))
    await pair.settle()
    await consumer.acknowledge("small", request(*consumer.held))
    assert pair.taken == taken
    pair.send(0, frames.settings({frames.INITIAL_WINDOW_SIZE: 65_535}))
    await pair.settle()
    await consumer.end()


async def test_a_lost_connection_holds_no_answers(consumer: Consumer) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken
    pair.send(0, b"".join(ack(consumer.next(), request(one)) for one in consumer.held))
    assert pair.taken == taken + 4
    for _ in range(60):
        await asyncio.sleep(0)
    for door in pair.doors:
        door.connections[0].connection_lost(None)
    await pair.settle()
    for door in pair.doors:
        assert door.endpoint.server.unsent.of(door.connections[0]) == 0
        assert not door.connections[0].http2.streams
    assert not any(queue.in_flight for side in pair.sides for queue in side.broker.pops.log.state)
    await pair.end()


async def test_a_client_that_has_left_is_a_new_one(consumer: Consumer) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken
    for door in pair.doors:
        for session in list(door.endpoint.sessions._by_key.values()):
            door.endpoint.sessions.remove(session)
    await consumer.acknowledge("left", request(consumer.held[0]))
    assert pair.taken == taken
    assert [len(door.endpoint.sessions) for door in pair.doors] == [1, 1]
    await consumer.acknowledge("back", request(consumer.held[1]))
    assert pair.taken == taken + 1
    await consumer.end()


async def test_another_client_on_the_connection_is_left_to_python(consumer: Consumer) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken
    pair.send(0, ack(consumer.next(), request(consumer.held[0]), client="other"))
    await pair.settle()
    assert pair.taken == taken
    await consumer.end()


async def test_a_client_that_only_sends_acknowledges_first_by_python(consumer: Consumer) -> None:
    await consumer.prepare(4)
    pair = consumer.pair
    connection = pair.open()
    pair.send(connection, HELLO + send(1))
    await pair.settle()
    taken = pair.taken
    for stream, one in zip((3, 5), consumer.held, strict=False):
        pair.send(connection, ack(stream, request(one)))
        await pair.settle()
    assert pair.taken == taken + 1
    await consumer.end()


async def test_quotas_and_slaves_end_the_path_of_the_core(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    await consumer.prepare(4)
    pair, taken = consumer.pair, consumer.pair.taken
    for side in pair.sides:
        side.broker.limiter.is_active = True
    await consumer.acknowledge("quotas", request(consumer.held[0]))
    for side in pair.sides:
        side.broker.limiter.is_active = False
    with monkeypatch.context() as patched:
        patched.setattr("cometmq.broker.controller.Broker.is_slave", property(lambda _: True))
        await consumer.acknowledge("a slave", request(consumer.held[1]))
    assert pair.taken == taken
    await consumer.end()


async def test_deleted_topics_and_groups_are_noticed(consumer: Consumer) -> None:
    await consumer.prepare(6)
    pair, taken = consumer.pair, consumer.pair.taken
    for side in pair.sides:
        side.broker.topics.delete("T")
    await consumer.acknowledge("deleted", *(request(one) for one in consumer.held))
    assert pair.taken == taken
    await consumer.end()
