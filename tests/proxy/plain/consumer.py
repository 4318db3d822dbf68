"""A client that receives messages from both endpoints and acknowledges them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.proxy.client import receive
from tests.proxy.plain.endpoints import Endpoints
from tests.proxy.plain.test_plain_calls import call as send
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.proxy.http2 import frames
from cometmq.proxy.protocol import v2

INVISIBLE_S = 60
RECEIVED = 32


class Given(NamedTuple):
    """A received message."""

    id: str
    handle: str


def request(*entries: Given, topic: str = "T", group: str = "G", namespace: str = "") -> bytes:
    made = v2.AckMessageRequest()
    made.group.name, made.topic.name = group, topic
    made.topic.resource_namespace = namespace
    for entry in entries:
        made.entries.append(v2.AckMessageEntry(message_id=entry.id, receipt_handle=entry.handle))
    return made.SerializeToString()


def ack(stream: int, payload: bytes, *, client: str = "client") -> bytes:
    """The frames of an AckMessage."""
    return headers(stream, "AckMessage", client=client) + data(stream, prefixed(payload))


def changed(given: Given, place: int, value: str) -> Given:
    """The message with another part of its handle."""
    parts = given.handle.split(" ")
    parts[place] = value
    return given._replace(handle=" ".join(parts))


class Consumer:
    """A client that receives and acknowledges on connection 0, and the messages that it holds."""

    def __init__(self, pair: Endpoints) -> None:
        self.pair = pair
        self.stream = 1
        self.held: list[Given] = []

    def next(self) -> int:
        """The number of the next stream."""
        self.stream += 2
        return self.stream - 2

    async def receive(self, messages: int, **fields: Any) -> None:
        """Send messages and receive them."""
        for _ in range(messages):
            self.pair.send(0, send(self.next()))
            await self.pair.settle()
        await self.take(messages, **fields)

    async def take(self, messages: int, **fields: Any) -> None:
        """Receive messages that are there."""
        while messages:
            wanted = receive("T", "G", "broker-a", batch_size=RECEIVED, **fields)
            wanted.invisible_duration.seconds = INVISIBLE_S
            stream = self.next()
            call = headers(stream, "ReceiveMessage", client="client")
            self.pair.send(0, call + data(stream, prefixed(wanted.SerializeToString())))
            found = _messages(await self.pair.settle("receive"), stream)
            assert found
            self.held += found
            for side in self.pair.sides:
                side.clock.advance(0.001)  # the next pop has another time
            messages -= len(found)

    async def prepare(self, messages: int, **fields: Any) -> None:
        """Receive messages, and acknowledge one, so that the core takes acknowledgements."""
        self.pair.send(0, HELLO + frames.window_update(0, 1 << 24))
        await self.receive(messages + 1, **fields)
        self.pair.send(0, ack(self.next(), request(self.held.pop())))
        await self.pair.settle("prepare")

    async def acknowledge(self, of: object, *payloads: bytes) -> bytes:
        """Make calls at once; return the answers."""
        streams = [self.next() for _ in payloads]
        self.pair.send(0, b"".join(ack(stream, payload) for stream, payload in zip(streams, payloads, strict=True)))
        found = (await self.pair.settle(of))[0]
        return b"".join(found.get(stream, b"") for stream in streams)

    async def end(self) -> None:
        """Acknowledge the rest, and compare what is left."""
        for first in range(0, len(self.held), 8):
            await self.acknowledge("the rest", *(request(one) for one in self.held[first : first + 8]))
        left = [[queue.in_flight for queue in side.broker.pops.log.state] for side in self.pair.sides]
        assert left[0] == left[1]
        await self.pair.end()


def _messages(sent: dict[int, dict[int, bytes]], stream: int) -> list[Given]:
    answer, found, at = b"", [], 0
    frame_bytes = sent[0][stream]
    while at < len(frame_bytes):
        high, low, kind, _, _ = frames.HEAD.unpack_from(frame_bytes, at)
        end = at + frames.HEAD_BYTES + (high << 8 | low)
        if kind == frames.DATA:
            answer += frame_bytes[at + frames.HEAD_BYTES : end]
        at = end
    while answer:
        length = int.from_bytes(answer[1:5], "big")
        response = v2.ReceiveMessageResponse.FromString(answer[5 : 5 + length])
        if response.HasField("message"):
            system = response.message.system_properties
            found.append(Given(system.message_id, system.receipt_handle))
        answer = answer[5 + length :]
    return found
