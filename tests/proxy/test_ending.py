"""The end of an endpoint: gRPC's own clients lose no call, and find out at once that nothing comes any more."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from tests.helpers.waiting import until
from tests.proxy.client import SERVICE, Client, receive

from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls
from cometmq.testing import Cluster

PATH = f"{SERVICE}Heartbeat"


async def test_calls_under_way_are_answered_before_a_server_closes_their_connection() -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def handler(_call: Call, _request: bytes) -> v2.HeartbeatResponse:
        began.set()
        await may_end.wait()
        return v2.HeartbeatResponse(status=v2.Status(message="done"))

    server = GrpcServer({PATH: Method(bytes, handler)}, tls=ServerTls(TlsOptions()))
    await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        asked = asyncio.create_task(Client(channel).ask("Heartbeat", v2.HeartbeatRequest()))
        await began.wait()
        stopping = asyncio.create_task(server.stop())
        (connection,) = server.connections
        await until(lambda: connection.http2._sent_goaway)  # the client has confirmed that it makes no more calls
        may_end.set()
        assert (await asked).status.message == "done"
        await stopping
    assert not server.connections


async def test_a_receive_that_waits_and_a_telemetry_stream_end_without_an_error_when_the_broker_stops(
    cluster: Cluster, client: Client
) -> None:
    stream = await client.subscribe("G", "T")
    waiting = asyncio.create_task(client.receive(receive("T", "G", cluster.broker(0).config.broker_name)))
    await until(lambda: len(cluster.broker(0).pops.polling) == 1)
    await cluster.stop_broker(0)
    answers: list[Any] = await waiting
    assert [answer.status.code for answer in answers if answer.HasField("status")] == [v2.Code.MESSAGE_NOT_FOUND]
    assert await stream.call.read() is grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK
