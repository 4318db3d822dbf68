"""A nameserver on a free port, and connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.namesrv.wire import Connect, Wire

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import VirtualClock


@pytest.fixture
async def server(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[NameServer]:
    running = NameServer(
        NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "namesrv" / "kvConfig.json")
        ),
        clock=clock,
    )
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def connect(server: NameServer) -> AsyncIterator[Connect]:
    opened: list[Wire] = []

    async def open_one() -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
        opened.append(wire)
        return wire

    yield open_one
    for wire in opened:
        await wire.close()
