"""Masters on free ports, with small log files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.replication.slave import RawSlave

from cometmq.broker.controller import Broker

FILE_BYTES = 64 * 1024

ConnectSlave = Callable[[Broker], Awaitable[RawSlave]]


@pytest.fixture
async def master(start_broker: StartBroker) -> Broker:
    return await start_broker(mapped_file_size_commit_log=FILE_BYTES, clean_file_forcibly_enable=False)


@pytest.fixture
async def connect_slave() -> AsyncIterator[ConnectSlave]:
    """Connects slaves to masters; they leave at the end."""
    connected: list[RawSlave] = []

    async def connect_one(master: Broker) -> RawSlave:
        connected.append(await RawSlave.connect(master))
        return connected[-1]

    yield connect_one
    for slave in connected:
        slave.close()
