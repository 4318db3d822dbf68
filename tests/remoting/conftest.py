"""The transports run on both event loops: asyncio's own and uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from tests.remoting.serving import Service


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    await service.server.start("127.0.0.1", 0, (service.end_round,))
    yield service
    await service.server.stop()
