"""Many clients of the gRPC port in one process, at the cost of a socket each: their bytes are made once.

Each is a consumer as Apache's Java client is: settings over Telemetry, heartbeats, and a receive that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

from tests.proxy.wire import HELLO, data, javas_headers, prefixed

from cometmq.proxy.converter import duration
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import frame
from cometmq.proxy.protocol import v2

_AT_ONCE = 100


class CrowdClient(asyncio.Protocol):
    """One consumer with a connection of its own."""

    def __init__(self, number: int, topic: str, group: str) -> None:
        self.client_id = f"client-of-a-crowd@{number}@0@abcdefghij"
        self.lost = False
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The last heartbeat has been answered."""
        self._topic, self._group = v2.Resource(name=topic), v2.Resource(name=group)
        self._buffer = b""
        self._stream = 3
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the stream, say what it is, and wait for messages."""
        self._transport = cast(asyncio.Transport, transport)
        entry = v2.SubscriptionEntry(
            topic=self._topic, expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
        )
        settings = v2.Settings(
            client_type=v2.ClientType.PUSH_CONSUMER,
            access_point=v2.Endpoints(
                scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)]
            ),
            request_timeout=duration(3_000),
            subscription=v2.Subscription(group=self._group, subscriptions=[entry]),
            user_agent=v2.UA(language=v2.Language.JAVA, version="5.2.0", platform="Linux", hostname="host"),
        )
        receive = v2.ReceiveMessageRequest(
            group=self._group,
            message_queue=v2.MessageQueue(topic=self._topic, broker=v2.Broker(name="broker-0")),
            filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
            batch_size=32,
            auto_renew=True,
            long_polling_timeout=duration(20_000),
        )
        self.send(
            HELLO
            + self._call(1, "Telemetry", v2.TelemetryCommand(settings=settings).SerializeToString(), ends=False)
            + self._call(3, "ReceiveMessage", receive.SerializeToString())
            + self._heartbeat()
        )

    async def heartbeat(self) -> None:
        """Send a sign of life, as clients do every ten seconds, and wait for the answer."""
        self.answered = asyncio.get_running_loop().create_future()
        self.send(self._heartbeat())
        await self.answered

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def _heartbeat(self) -> bytes:
        self._stream += 2
        request = v2.HeartbeatRequest(group=self._group, client_type=v2.ClientType.PUSH_CONSUMER)
        return self._call(self._stream, "Heartbeat", request.SerializeToString())

    def _call(self, stream: int, method: str, payload: bytes, *, ends: bool = True) -> bytes:
        return javas_headers(stream, method, self.client_id) + data(stream, prefixed(payload), ends=ends)

    def data_received(self, data: bytes) -> None:
        """Answer pings, and see when the first calls are answered."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream = frames.HEAD.unpack_from(self._buffer, at)
            end = at + frames.HEAD_BYTES + (high << 8 | low)
            if len(self._buffer) < end:
                break
            if kind == frames.PING and not flags & frames.ACK:
                self.send(frame(frames.PING, frames.ACK, 0, self._buffer[at + frames.HEAD_BYTES : end]))
            if (
                kind == frames.HEADERS
                and flags & frames.END_STREAM
                and stream == self._stream
                and not self.answered.done()
            ):
                self.answered.set_result(None)
            at = end
        self._buffer = self._buffer[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember it."""
        self.lost = True
        if not self.answered.done():
            self.answered.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


def _given(client: CrowdClient) -> CrowdClient:
    return client


@asynccontextmanager
async def crowd(port: int, count: int, topic: str, group: str) -> AsyncIterator[list[CrowdClient]]:
    """Hundreds of clients that are connected, known, and wait for messages."""
    loop = asyncio.get_running_loop()
    clients: list[CrowdClient] = []
    try:
        while len(clients) < count:
            some = [CrowdClient(number, topic, group) for number in range(len(clients), len(clients) + _AT_ONCE)]
            clients += some
            await asyncio.gather(*(loop.create_connection(partial(_given, one), "127.0.0.1", port) for one in some))
            await asyncio.gather(*(one.answered for one in some))
        yield clients
    finally:
        for one in clients:
            one.close()
