"""A broker on a free port, and connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.disks import HeldDisk
from tests.broker.wire import Connect, Wire

import cometmq.broker.tables.journaled_file
from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.testing import VirtualClock

StartBroker = Callable[..., Awaitable[Broker]]
ConnectTo = Callable[[Broker], Awaitable[Wire]]


LOG_FILE_BYTES = 5 * 1024 * 1024
"""The largest message fits. The system clears the pages of a file that is made ahead: half of a broker's start."""


def small_config(directory: Path, **options: Any) -> BrokerConfig:
    """A configuration for tests: small files, a free port, this machine only."""
    values: dict[str, Any] = {
        "store_path_root_dir": str(directory / "store"),
        "mapped_file_size_commit_log": LOG_FILE_BYTES,
        "mapped_file_size_consume_queue": 20 * 10_000,
        "max_hash_slot_num": 1_000,
        "max_index_num": 10_000,
        "broker_name": "broker-a",
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
    }
    return BrokerConfig(**(values | options))


@pytest.fixture
async def start_broker(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[StartBroker]:
    """Starts brokers on the test's directory, with the options given; they are stopped at the end."""
    started: list[Broker] = []

    async def start(**options: Any) -> Broker:
        running = Broker(small_config(tmp_path, **options), clock=clock)
        await running.start()
        started.append(running)
        return running

    yield start
    for running in started:
        await running.stop()


@pytest.fixture
def tables_disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    """The disk of the tables of all brokers that start later."""
    held = HeldDisk()
    monkeypatch.setattr(cometmq.broker.tables.journaled_file, "Disk", lambda: held)
    return held


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker()


@pytest.fixture
async def connect_to() -> AsyncIterator[ConnectTo]:
    """Opens connections to any broker; they are closed at the end."""
    opened: list[Wire] = []

    async def open_one(target: Broker) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", target.server.port))
        opened.append(wire)
        return wire

    yield open_one
    for wire in opened:
        await wire.close()


@pytest.fixture
def connect(broker: Broker, connect_to: ConnectTo) -> Connect:
    async def open_one() -> Wire:
        return await connect_to(broker)

    return open_one


@pytest.fixture
async def wire(connect: Connect) -> Wire:
    return await connect()
