"""Shares of connections: a client that makes a thousand calls at once waits for the others in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.helpers.waiting import until
from tests.proxy.client import SERVICE
from tests.proxy.held_up import Peer
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.proxy.limits import GRPC_SILENT_SECONDS
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls
from cometmq.testing import VirtualClock

CLIENTS, CALLS = 5, 300
AT_ONCE = 16 + 32
"""A round of connections that wait, and the share of one that was alone."""


async def test_few_calls_begin_in_a_round_of_the_loop_and_all_connections_get_their_share() -> None:
    loop = asyncio.get_running_loop()
    begun: Counter[int] = Counter()
    order: list[str] = []
    now = 0

    def tick() -> None:
        nonlocal now
        now += 1
        if len(order) < CLIENTS * CALLS:
            loop.call_soon(tick)

    async def handler(call: Call, _request: Any) -> None:
        begun[now] += 1
        order.append(call.metadata["x-mq-client-id"])

    server = GrpcServer({f"{SERVICE}Heartbeat": Method(bytes, handler)}, tls=ServerTls(TlsOptions()))
    await server.start("127.0.0.1", 0)
    writers = []
    try:
        tick()
        for client in range(CLIENTS):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writers.append(writer)
            streams = range(1, 2 * CALLS, 2)
            calls = (headers(n, "Heartbeat", client=str(client)) + data(n, prefixed(b"")) for n in streams)
            writer.write(HELLO + b"".join(calls))
        await until(lambda: len(order) >= CLIENTS * CALLS)
    finally:
        for writer in writers:
            writer.transport.abort()
        await server.stop()
    assert max(begun.values()) <= AT_ONCE
    middle = Counter(order[CLIENTS * CALLS // 4 : CLIENTS * CALLS // 2])
    assert len(middle) == CLIENTS, "nobody waits until another one is done"


async def test_a_connection_that_waits_for_its_share_is_not_silent() -> None:
    clock = VirtualClock()
    methods = {f"{SERVICE}Heartbeat": Method(bytes, direct=lambda _call, request: request)}
    server = GrpcServer(methods, tls=ServerTls(TlsOptions()), clock=clock)
    await server.start("127.0.0.1", 0)
    try:
        busy, joins = Peer(server), Peer(server, keeps=True)
        calls = (headers(n, "Heartbeat") + data(n, prefixed(b"")) for n in range(1, 2 * CALLS, 2))
        busy.connection.data_received(HELLO + b"".join(calls))
        joins.connection.data_received(HELLO + headers(1, "Heartbeat") + data(1, prefixed(b"")))
        assert not joins.connection.http2.has_preface, "it waits for its share"
        clock.advance(2 * GRPC_SILENT_SECONDS)
        await until(lambda: joins.has_answer(1))
        clock.advance(2 * GRPC_SILENT_SECONDS)
        assert joins.transport.is_closed, "it does not answer pings"
    finally:
        await server.stop()
