"""Two brokers that get the same bytes at the same moments: one with the compiled core, one without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config

import cometmq.broker.controller as controller
import cometmq.broker.lite.index as index
import cometmq.broker.master_parts as master_parts
import cometmq.broker.send.send_message as send_message
from cometmq.broker.controller import Broker
from cometmq.core import CORE
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock

NEVER = 1 << 30


class Transport:
    """Takes what a connection writes; everything else that asyncio's transport does is not needed here."""

    def __init__(self, port: int, ip: str) -> None:
        self.peer = (ip, port)
        self.written = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return self.peer if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Side:
    """A broker on a directory of its own, and its connections."""

    def __init__(self, directory: Path, connections: int, ip: str, options: dict[str, Any]) -> None:
        self.directory = directory
        self.clock = VirtualClock()
        self.broker = Broker(small_config(directory, **options), clock=self.clock)
        self._ips = [ip] * connections
        self.transports: list[Transport] = []
        self.connections: list[ServerConnection] = []

    async def start(self, monkeypatch: pytest.MonkeyPatch, core: Any) -> None:
        monkeypatch.setattr(send_message, "LARGE_BYTES", NEVER)  # a broker reads larger ones in later rounds
        with monkeypatch.context() as patched:
            for module in (controller, index, master_parts):
                patched.setattr(module, "CORE", core)
            await self.broker.start()
        assert (self.broker.plain_sends is None) == (core is None)
        self.broker.server.schedule_round = lambda: None  # type: ignore[method-assign]
        for ip in self._ips:
            self.connect(ip)

    def connect(self, ip: str) -> int:
        """Open a connection; return its number."""
        number = len(self.connections)
        self.transports.append(Transport(30_000 + number, ip))
        self.connections.append(ServerConnection(self.broker.server))
        self.connections[-1].connection_made(self.transports[-1])  # type: ignore[arg-type]
        return number

    def receive(self, connection: int, data: bytes) -> None:
        """Give a connection bytes, as the event loop does."""
        if not self.transports[connection].is_closed:
            self.connections[connection].data_received(data)

    def end_round(self) -> None:
        """End the round of the loop, with all that goes on in the next ones."""
        self.broker.server._end_round()
        while self._write_tables() or self.broker.server.waiting:
            self.broker.server._end_round()

    def _write_tables(self) -> bool:
        """Let the requests go on that wait for a table; tell whether it was written."""
        writer = self.broker._tables._writer
        assert writer is not None
        if writer._running is None:
            return bool(writer._written)
        wait((writer._running,))
        writer._finish_write(writer._running)
        return True

    def answers(self) -> list[bytes]:
        """The bytes sent to each connection since the last call."""
        found = [bytes(transport.written) for transport in self.transports]
        for transport in self.transports:
            transport.written.clear()
        return found

    async def stop(self) -> dict[str, bytes]:
        """Stop the broker; return the files of its store that records, queues and the index are in."""
        self.end_round()
        for connection in self.connections:
            connection.connection_lost(None)
        await self.broker.stop()
        store = self.directory / "store"
        return {
            str(path.relative_to(store)): path.read_bytes()
            for room in ("commitlog", "consumequeue", "index")
            for path in sorted((store / room).rglob("*"))
            if path.is_file()
        }


class SideBySide:
    """The two brokers; what both do is compared."""

    def __init__(self, directory: Path, *, connections: int = 2, ip: str = "127.0.0.1", **options: Any) -> None:
        ours = {"broker_ip1": "127.0.0.1", "default_topic_queue_nums": 4, **options}
        self.sides = [Side(directory / name, connections, ip, ours) for name in ("core", "python")]
        self.compiled, self.python = self.sides

    async def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start both; their ports, which are in records and answers, are made equal."""
        monkeypatch.setattr("cometmq.broker.controller.encode_host", lambda *_: bytes((127, 0, 0, 1, 0, 0, 42, 159)))
        await self.compiled.start(monkeypatch, CORE)
        await self.python.start(monkeypatch, None)

    def receive(self, connection: int, data: bytes) -> None:
        """Give both the same bytes."""
        for side in (self.compiled, self.python):
            random.seed(7)  # a broker chooses a queue where the producer names none
            side.receive(connection, data)

    def connect(self, ip: str = "127.0.0.1") -> int:
        """Open a connection to both; return its number."""
        self.compiled.connect(ip)
        return self.python.connect(ip)

    def end_round(self, of: object = None) -> None:
        """End the turn of both and compare their answers; ``of`` names what it was about."""
        self.compiled.end_round()
        self.python.end_round()
        self.compare(of)

    def compare(self, of: object = None) -> None:
        """Compare what both have sent since the last time."""
        for side in self.sides:
            side.end_round()
        assert self.compiled.answers() == self.python.answers(), of

    async def stop(self) -> None:
        """Stop both and compare their stores, byte by byte."""
        compiled, python = await self.compiled.stop(), await self.python.stop()
        assert compiled.keys() == python.keys()
        for name, content in compiled.items():
            assert content == python[name], name
