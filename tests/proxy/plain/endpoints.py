"""Two gRPC endpoints that get the same bytes at the same moments: one with the compiled core, one without."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.broker.turn.side_by_side import Side, SideBySide, Transport

from cometmq.broker.controller import Broker
from cometmq.core import CORE
from cometmq.metrics.family import Histogram
from cometmq.proxy.backend import local
from cometmq.proxy.backend.local import LocalBackend
from cometmq.proxy.backend.plain_calls import PlainCaller
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.endpoint import GrpcEndpoint
from cometmq.proxy.http2 import frames, hpack
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.server import GrpcConnection
from cometmq.remoting.rpc_latency import RPC_LATENCY
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls

_MOST_ROUNDS, _IDLE_ROUNDS = 60, 3
"""Rounds of the event loop that tasks get for all that they can do without the end of the turn, and rounds without any
work after which they have done it."""


class Door:
    """The endpoint of one side, and its connections."""

    def __init__(self, side: Side, core: Any) -> None:
        self.side = side
        self._core = core
        self.transports: list[Transport] = []
        self.connections: list[GrpcConnection] = []

    def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = self.side.broker
        with monkeypatch.context() as patched:
            patched.setattr(local, "CORE", self._core)
            backend = LocalBackend(broker, EndpointConfig().call_limits)
        self.endpoint = GrpcEndpoint(backend, tls=ServerTls(TlsOptions()), checker=None, clock=broker.clock)

    @property
    def renewed(self) -> Renewals:
        """The receipt handles that the endpoint renews."""
        return self.endpoint._renewals

    def connect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(hpack, "CORE", self._core)
            connection = GrpcConnection(self.endpoint.server)
        self.transports.append(Transport(40_000 + len(self.transports), "127.0.0.1"))
        connection.connection_made(self.transports[-1])  # type: ignore[arg-type]
        self.connections.append(connection)

    def receive(self, connection: int, data: bytes) -> None:
        if self.transports[connection].is_closed:
            return
        self.connections[connection].data_received(data)

    async def stop(self) -> None:
        for connection in self.connections:
            connection.connection_lost(None)
        await self.endpoint.sessions.stop()


class Endpoints(SideBySide):
    """The two endpoints; what both do is compared."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, connections=0, **options)
        self.doors = [Door(self.compiled, CORE), Door(self.python, None)]
        self.taken = 0
        """Calls that the core has taken."""

    async def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await super().start(monkeypatch)
        self._monkeypatch = monkeypatch
        take = PlainCaller.__call__

        def counted(*arguments: Any) -> Any:
            taken = take(*arguments)
            self.taken += 0 if taken is None else taken[3]
            return taken

        monkeypatch.setattr(PlainCaller, "__call__", counted)
        for door in self.doors:
            door.start(monkeypatch)

    def open(self) -> int:
        """Open a connection to both; return its number."""
        for door in self.doors:
            door.connect(self._monkeypatch)
        return len(self.doors[0].connections) - 1

    def send(self, connection: int, data: bytes) -> None:
        """Give both the same bytes."""
        for door in self.doors:
            door.receive(connection, data)

    async def settle(self, of: object = None) -> dict[int, dict[int, bytes]]:
        """End the turn of both and compare what they have sent on each stream; return it."""
        for _ in range(2):
            await let_tasks_work()
            for side in self.sides:
                side.end_round()
        await let_tasks_work()
        compiled, python = ([_by_stream(transport) for transport in door.transports] for door in self.doors)
        assert compiled == python, of
        closed = [[transport.is_closed for transport in door.transports] for door in self.doors]
        assert closed[0] == closed[1], of
        return dict(enumerate(compiled))

    async def end(self) -> None:
        """Stop both and compare their stores, byte by byte, and what their metrics have counted."""
        compiled, python = (answers(side.broker) for side in self.sides)
        assert compiled == python
        for door in self.doors:
            await door.stop()
        await self.stop()


async def let_tasks_work() -> None:
    """Let tasks do all that they can without the end of the turn."""
    loop: Any = asyncio.get_running_loop()
    idle = 0
    for _ in range(_MOST_ROUNDS):
        await asyncio.sleep(0)
        idle = 0 if loop._ready else idle + 1
        if idle == _IDLE_ROUNDS:
            return


def _by_stream(transport: Transport) -> dict[int, bytes]:
    """The frames sent since the last call by stream, since calls of one connection may be answered in any order."""
    data = bytes(transport.written)
    transport.written.clear()
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        high, low, _, _, number = frames.HEAD.unpack_from(data, at)
        end = at + frames.HEAD_BYTES + (high << 8 | low)
        found[number] = found.get(number, b"") + data[at:end]
        at = end
    return found


def answers(broker: Broker) -> Counter[tuple[str, ...]]:
    """The number of answers that the metrics have counted, by the codes of requests and answers."""
    latency = broker.server.path.latency
    counted: Counter[tuple[str, ...]] = Counter()
    for family, labels, value in () if latency is None else latency.samples():
        if family is RPC_LATENCY:
            assert isinstance(value, Histogram)
            counted[labels] = sum(value.counts)
    return counted
