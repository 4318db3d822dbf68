"""AckMessage calls between all other frames of a hostile client: what both do is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.proxy.plain.consumer import INVISIBLE_S, Consumer, ack, changed, request
from tests.proxy.plain.test_plain_acks import consumer
from tests.proxy.plain.test_plain_calls import call as send
from tests.proxy.wire import GRPC, HELLO, data, headers, prefixed

from cometmq.core import CORE
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import frame
from cometmq.proxy.http2.hpack import encode_headers
from cometmq.remoting.bodies import SubscriptionGroupConfig

__all__ = ["consumer"]
pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

STATIC = 62
"""The first number of a client's own table."""
TABLE_BYTES = 4_096


class Encoder:
    """A client's header table, which is used in any way that is allowed."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._table: list[tuple[str, str]] = []
        self._limit = TABLE_BYTES

    def encode(self, *fields: tuple[str, str]) -> bytes:
        random_, out = self._random, b""
        if random_.random() < 0.2:
            for limit in random_.choice(([0, TABLE_BYTES], [300], [TABLE_BYTES])):
                self._limit = limit
                self._shrink()
                out += number(limit, 0x1F, 0x20)
        for field in fields:
            if field in self._table and random_.random() < 0.9:
                out += number(self._table.index(field) + STATIC, 0x7F, 0x80)
            elif random_.random() < 0.7:
                out += b"\x40" + encode_headers(field)[1:]
                self._table.insert(0, field)
                self._shrink()
            else:
                out += encode_headers(field)
        return out

    def _shrink(self) -> None:
        while sum(len(name) + len(value) + 32 for name, value in self._table) > self._limit:
            self._table.pop()


def number(value: int, mask: int, bits: int) -> bytes:
    if value < mask:
        return bytes([bits | value])
    out, value = [bits | mask], value - mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def begun(stream: int, encoder: Encoder, random_: random.Random) -> bytes:
    """The headers of an AckMessage in frames of any form."""
    path = (":path", "/apache.rocketmq.v2.MessagingService/AckMessage")
    own = (("x-mq-client-id", "client"), ("x-own", "v" * random_.choice((1, 1, 700, 5_000))))
    block = encoder.encode((":method", "POST"), path, *GRPC, *own)
    form = random_.random()
    if form < 0.7:
        return frame(frames.HEADERS, frames.END_HEADERS, stream, block)
    if form < 0.8:
        return frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, stream, b"\x03" + block + bytes(3))
    if form < 0.9:
        return frame(frames.HEADERS, frames.END_HEADERS | frames.HAS_PRIORITY, stream, bytes(5) + block)
    cut = random_.randrange(len(block))
    return frame(frames.HEADERS, 0, stream, block[:cut]) + frame(
        frames.CONTINUATION, frames.END_HEADERS, stream, block[cut:]
    )


def other_frames(random_: random.Random) -> Iterator[bytes]:
    while True:
        yield random_.choice(
            (
                frame(frames.PING, 0, 0, b"12345678"),
                frames.window_update(0, 9),
                frames.window_update(1, 9),
                frames.settings({frames.INITIAL_WINDOW_SIZE: random_.choice((65_535, 9_000, 70_000))}),
                frame(2, 0, 1, bytes(5)),
                data(1, b"late"),
            )
        )


@pytest.mark.parametrize("seed", range(8))
async def test_calls_with_any_table_and_between_any_frames(consumer: Consumer, seed: int) -> None:
    random_ = random.Random(seed)
    await consumer.prepare(90)
    pair, held = consumer.pair, list(consumer.held)
    connection, encoder, others = pair.open(), Encoder(random_), other_frames(random_)
    pair.send(connection, HELLO + ack(1, request(held.pop())))
    await pair.settle()
    stream, taken = 3, pair.taken
    for round_ in range(12):
        written = b""
        for _ in range(random_.randrange(1, 12)):
            one = random_.choice(held)
            payload = prefixed(request(one if random_.random() < 0.8 else changed(one, 7, "9000")))
            if random_.random() < 0.9 and one in held:
                held.remove(one)
            written += begun(stream, encoder, random_)
            if random_.random() < 0.2:
                written += next(others)
            cut = random_.randrange(len(payload)) if random_.random() < 0.2 else 0
            written += data(stream, payload[:cut], ends=False) if cut else b""
            written += data(stream, payload[cut:])
            if random_.random() < 0.2:
                written += next(others)
            stream += 2
        while written:
            size = random_.choice((1, 50, 400, 10_000))
            pair.send(connection, written[:size])
            await pair.settle((seed, round_))
            written = written[size:]
        if not held:
            break
    assert pair.taken > taken
    assert not any(transport.is_closed for door in pair.doors for transport in door.transports)
    await consumer.end()


async def test_a_block_that_is_left_to_python_is_left_once(consumer: Consumer) -> None:
    await consumer.prepare(20)
    pair, held = consumer.pair, consumer.held
    taken = pair.taken
    payloads = [request(one) for one in held[:6]]
    payloads[2] = request(changed(held[2], 7, "9000"))
    await consumer.acknowledge("one of them is not handed out", *payloads)
    assert pair.taken == taken
    # the very next call is the core's
    await consumer.acknowledge("next", request(held[6]))
    assert pair.taken == taken + 1
    await consumer.end()


async def test_frames_behind_a_block_that_is_left_to_python(consumer: Consumer) -> None:
    await consumer.prepare(20)
    pair, held = consumer.pair, consumer.held
    taken = pair.taken
    bad = request(changed(held[0], 7, "9000"))
    first = [ack(consumer.next(), payload) for payload in (request(held[1]), bad, request(held[2]))]
    cut_stream = consumer.next()
    cut = headers(cut_stream, "AckMessage", client="client")
    pair.send(0, b"".join(first) + cut)
    await pair.settle("a call is cut behind them")
    assert pair.taken == taken
    pair.send(0, data(cut_stream, prefixed(request(held[3]))))
    await pair.settle("its data")
    pair.send(0, send(consumer.next()))
    await pair.settle("a send")
    assert pair.taken == taken + 2
    await consumer.end()


async def test_messages_in_order(consumer: Consumer) -> None:
    pair = consumer.pair
    for side in pair.sides:
        side.broker.groups.put(SubscriptionGroupConfig(group_name="G", consume_message_orderly=True))
    await consumer.prepare(5)
    for end in (6, 11):
        taken = pair.taken
        assert {one.handle.split(" ")[3] for one in consumer.held} == {"999"}
        committed = [side.broker.offsets.query("G", "T", 0) for side in pair.sides]
        # the first one blocks the queue until it is acknowledged
        await consumer.acknowledge("later ones", *(request(one) for one in consumer.held[1:]))
        assert [side.broker.offsets.query("G", "T", 0) for side in pair.sides] == committed
        await consumer.acknowledge("the first one", request(consumer.held[0]), request(consumer.held[0]))
        await consumer.acknowledge("again", request(consumer.held[0]))
        assert [side.broker.offsets.query("G", "T", 0) for side in pair.sides] == [end] * 2
        assert pair.taken > taken
        assert not any(queue.in_flight for side in pair.sides for queue in side.broker.pops.log.state)
        consumer.held.clear()
        if end == 6:
            await consumer.receive(5)
    await consumer.end()


async def test_messages_of_a_retry_topic(consumer: Consumer) -> None:
    await consumer.prepare(6)
    pair, taken = consumer.pair, consumer.pair.taken
    for side in pair.sides:
        side.clock.advance(INVISIBLE_S + 5)
    await pair.settle("due")
    stale, consumer.held = consumer.held, []
    await consumer.acknowledge("expired", *(request(one) for one in stale))
    assert pair.taken == taken
    await consumer.take(6)
    assert {one.handle.split(" ")[4] for one in consumer.held} == {"1"}
    others = [changed(consumer.held[0], 4, kind) for kind in "02"]
    await consumer.acknowledge("of another kind", *(request(one) for one in others))
    assert pair.taken == taken
    first, second, *rest = consumer.held
    await consumer.acknowledge("retried", request(first, second), *(request(one) for one in rest[1:]))
    assert pair.taken == taken + 4
    consumer.held = rest[:1]
    # the same message by both names of its topic
    log_entries = [side.broker.pops.log.put_entries for side in pair.sides]
    by_name = request(changed(rest[0], 4, "0"), topic="%RETRY%G_T")
    await consumer.acknowledge("by both names", request(rest[0]), by_name, request(rest[0]))
    assert [side.broker.pops.log.put_entries - put for side, put in zip(pair.sides, log_entries, strict=True)] == [1, 1]
    assert not any(queue.in_flight for side in pair.sides for queue in side.broker.pops.log.state)
    await consumer.end()


async def test_a_message_is_acknowledged_once_by_both_names_of_its_topic(consumer: Consumer) -> None:
    await consumer.prepare(2)
    pair = consumer.pair
    for side in pair.sides:
        side.clock.advance(INVISIBLE_S + 5)
    await pair.settle("due")
    consumer.held = []
    await consumer.take(2)
    one = consumer.held[0]
    put = [side.broker.pops.log.put_entries for side in pair.sides]
    by_name = request(changed(one, 4, "0"), topic="%RETRY%G_T")
    await consumer.acknowledge("by both names", request(one), by_name)
    assert [side.broker.pops.log.put_entries - before for side, before in zip(pair.sides, put, strict=True)] == [1, 1]
    await consumer.end()
