"""A receive that its client resets at any moment: the messages go to the client, or become visible again soon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.proxy.plain.endpoints import Endpoints
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode
from cometmq.proxy.protocol import v2
from cometmq.remoting.bodies import TopicConfig

STREAM = 3
RELEASE_MS = 1_010
BODY = b"b" * 100_000
"""A large answer, which waits for its share of time."""


def _send() -> bytes:
    message = v2.Message(topic=v2.Resource(name="T"), body=BODY)
    message.system_properties.message_id = f"01{1:032X}"
    message.system_properties.message_type = v2.MessageType.NORMAL
    payload = v2.SendMessageRequest(messages=[message]).SerializeToString()
    return headers(1, "SendMessage", client="client") + data(1, prefixed(payload))


def _receive() -> bytes:
    request = v2.ReceiveMessageRequest(group=v2.Resource(name="G"), batch_size=1)
    request.message_queue.topic.name = "T"
    request.message_queue.broker.name = "broker-a"
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 5
    payload = prefixed(request.SerializeToString())
    return headers(STREAM, "ReceiveMessage", client="client") + data(STREAM, payload)


@pytest.mark.parametrize("steps", range(8))
async def test_messages_are_received_or_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    pair = Endpoints(tmp_path)
    await pair.start(monkeypatch)
    for side in pair.sides:
        side.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    pair.open()
    pair.send(0, HELLO + _send())
    await pair.settle()
    pair.send(0, _receive())
    for _ in range(steps):
        await asyncio.sleep(0)
    for door in pair.doors:
        door.connections[0].flush()
    is_sent = [len(door.transports[0].written) > 10_000 for door in pair.doors]
    pair.send(0, frames.reset(STREAM, ErrorCode.CANCEL))
    for _ in range(3):
        for _ in range(60):
            await asyncio.sleep(0)
        for side in pair.sides:
            side.end_round()
    for side, sent in zip(pair.sides, is_sent, strict=True):
        (queue,) = side.broker.pops.log.state
        times = queue.invisible.find(0)
        assert times is not None
        assert sent or times[1] - side.clock.now_ms() <= RELEASE_MS
    for door in pair.doors:
        await door.stop()
    await pair.stop()
