"""Many clients of one broker, in a process of their own: ``python -m benchmarks.scale.crowd PORT CLIENTS TOPIC``.

Each has a connection, and is a producer and a consumer: 50 consumers are a group. All come at once, then each sends a
heartbeat every 30 seconds, as RocketMQ's clients do, until stdin ends; then all connections are closed. Prints one line
when all have come.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Final

from benchmarks.scale.wire import heartbeat

HEARTBEAT_S: Final = 30.0
OF_A_GROUP: Final = 50
COME_AT_ONCE: Final = 64


def more_descriptors() -> None:
    """Let this process, and those that it starts, open as many files as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _heartbeat(number: int, topic: str) -> bytes:
    """The request of one client."""
    return heartbeat(f"10.0.0.{number % 250}@{number}", f"crowd-{number // OF_A_GROUP}", topic)


class _Client(asyncio.Protocol):
    """One client; what the broker tells it needs no answer."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.heard.done():
            self.heard.set_exception(ConnectionError("the broker has closed the connection"))


async def stay(port: int, clients: int, topic: str) -> None:
    """Come, stay until stdin ends, and leave."""
    loop = asyncio.get_running_loop()
    turn = asyncio.Semaphore(COME_AT_ONCE)
    there: list[tuple[asyncio.Transport, bytes]] = []

    async def come(number: int) -> None:
        async with turn:
            transport, client = await loop.create_connection(_Client, "127.0.0.1", port)
            frame = _heartbeat(number, topic)
            transport.write(frame)
            await client.heard
            there.append((transport, frame))

    async def beat() -> None:
        while True:
            for transport, frame in there:
                transport.write(frame)
                await asyncio.sleep(HEARTBEAT_S / clients)

    await asyncio.gather(*map(come, range(clients)))
    print("all have come", flush=True)
    beating = asyncio.create_task(beat())
    await asyncio.to_thread(sys.stdin.read)
    beating.cancel()
    for transport, _ in there:
        transport.abort()


if __name__ == "__main__":
    more_descriptors()
    asyncio.run(stay(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
