"""A slave on a raw connection: it keeps what comes, and reports what and when a test says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self, cast

from cometmq.broker.controller import Broker
from cometmq.broker.replication.frames import Transfer, TransferReader, encode_report
from cometmq.testing import settle


class RawSlave(asyncio.Protocol):
    """One connection to a master's HA port; everything that has arrived is there once the loop is at rest."""

    def __init__(self) -> None:
        self.transfers: list[Transfer] = []
        self.closed = False
        self._reader = TransferReader()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, master: Broker) -> Self:
        """Connect to the HA port of a broker of this process."""
        loop = asyncio.get_running_loop()
        _, slave = await loop.create_connection(cls, "127.0.0.1", master.ha.port)
        await settle()
        return slave

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transfers += self._reader.feed(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed = True

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    async def write(self, data: bytes) -> None:
        """Send anything, and let the master take it."""
        self.transport.write(data)
        await settle()

    async def report(self, offset: int) -> None:
        """Report that the slave's log ends there, and take what the master sends then."""
        await self.write(encode_report(offset))

    @property
    def bodies(self) -> list[Transfer]:
        """The transfers that are no heartbeats."""
        return [transfer for transfer in self.transfers if transfer.body]

    @property
    def heartbeats(self) -> list[int]:
        """The offsets of the heartbeats."""
        return [transfer.offset for transfer in self.transfers if not transfer.body]

    @property
    def start(self) -> int:
        """The offset at which the first transfer begins."""
        return self.bodies[0].offset

    @property
    def end(self) -> int:
        """The offset at which the last transfer ends."""
        return self.bodies[-1].offset + len(self.bodies[-1].body)

    @property
    def log(self) -> bytes:
        """All bytes that have come, in one piece."""
        at = self.start
        for transfer in self.bodies:
            assert transfer.offset == at
            at += len(transfer.body)
        return b"".join(transfer.body for transfer in self.bodies)

    def close(self) -> None:
        """Leave."""
        self.transport.abort()


def log_of(master: Broker, start: int) -> bytes:
    """The master's log from an offset on, as its files have it."""
    files = sorted(Path(master.config.commit_log).iterdir())
    first = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[start - first : master.store.max_physical_offset - first]
