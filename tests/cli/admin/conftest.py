"""A broker and a nameserver with users, and commands of their super user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.cli.conftest import CommandLine, Result

from cometmq.broker.controller import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer

Run = Callable[..., Awaitable[Result]]
USERS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username":"root","password":"secret-of-root"}',
    "inner_client_authentication_credentials": '{"accessKey":"servers","secretKey":"secret-of-servers"}',
}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[NameServer, Broker]]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"), **USERS)
    nameserver = NameServer(config)
    await nameserver.start()
    broker = Broker(small_config(tmp_path, namesrv_addr=nameserver.address, **USERS))
    await broker.start()
    yield nameserver, broker
    await broker.stop()
    await nameserver.stop()


@pytest.fixture
def run(servers: tuple[NameServer, Broker], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret-of-root")
    command = CommandLine(servers[0].address)

    async def in_thread(*arguments: str) -> Result:
        return await asyncio.to_thread(command, *arguments)

    return in_thread
