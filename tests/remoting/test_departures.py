"""Connections that close together take a share of each round, so that others are answered in between."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.remoting.serving import Raw, Service

from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.connections.gradual import SHARE_SECONDS
from cometmq.remoting.server_connection import ServerConnection


async def connect_many(service: Service, count: int) -> list[Raw]:
    clients = [await Raw.connect(service) for _ in range(count)]
    for client in clients:
        await client.ask(RemotingCommand(code=34, opaque=1))
    return clients


async def test_connections_that_close_together_take_a_share_of_each_round(service: Service) -> None:
    clients = await connect_many(service, 5)
    for connection in service.kept:
        connection.on_close.append(lambda _: service.clock.advance(SHARE_SECONDS))
    for connection in service.kept:
        connection.abort()
    in_rounds: list[int] = []
    while len(service.closed) < 5:
        before = len(service.closed)
        await asyncio.sleep(0)
        in_rounds.append(len(service.closed) - before)
    assert max(in_rounds) == 1
    assert service.closed == service.kept
    for client in clients:
        await client.close()


async def test_connections_that_fall_silent_together_are_closed_in_a_share_of_each_round(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    clients = await connect_many(service, 5)

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            service.clock.advance(SHARE_SECONDS)

    caplog.set_level(logging.INFO)
    slow = Slow()
    logging.getLogger("cometmq.remoting.connections.silence").addHandler(slow)
    try:
        service.clock.advance(130)
        in_rounds: list[int] = []
        while service.server.connections:
            before = len(service.server.connections)
            await asyncio.sleep(0)
            in_rounds.append(before - len(service.server.connections))
    finally:
        logging.getLogger("cometmq.remoting.connections.silence").removeHandler(slow)
    assert max(in_rounds) == 1
    assert len([line for line in caplog.messages if "idle for 120 s" in line]) == 5
    for client in clients:
        await client.close()


async def test_a_function_that_fails_keeps_no_other_from_being_called(service: Service) -> None:
    def fail(_: ServerConnection) -> None:
        raise RuntimeError("broken on purpose")

    clients = await connect_many(service, 2)
    for connection in service.kept:
        connection.on_close.insert(0, fail)
        connection.abort()
    while len(service.closed) < 2:
        await asyncio.sleep(0)
    for client in clients:
        await client.close()


async def test_a_stop_ends_when_all_functions_were_called(service: Service) -> None:
    clients = await connect_many(service, 5)
    for connection in service.kept:
        connection.on_close.append(lambda _: service.clock.advance(SHARE_SECONDS))
    await service.server.stop()
    assert len(service.closed) == 5
    for client in clients:
        await client.close()


async def test_nothing_is_sent_to_a_closed_connection(service: Service) -> None:
    (client,) = await connect_many(service, 1)
    (connection,) = service.kept
    assert not connection.is_behind
    await client.close()
    while not service.closed:
        await asyncio.sleep(0)
    assert connection.is_behind
