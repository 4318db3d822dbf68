from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.helpers.waiting import until

from cometmq.clock import SYSTEM_CLOCK
from cometmq.loop import fastest_loop
from cometmq.remoting.client import ClientRpcHook, RemotingClient
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.connections.client_connection import LARGE_FRAME_BYTES, WRITE_BYTES, ClientConnection
from cometmq.remoting.errors import (
    ForkedError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingSendError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from cometmq.remoting.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader, NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock

ECHO, SILENT, BYE = 30, 31, 32


class Server:
    """Echoes queue ids, keeps silent, or hangs up, as asked."""

    def __init__(self) -> None:
        table = ProcessorTable()
        table.register(ECHO, GetMaxOffsetRequestHeader, self._echo)
        table.register(SILENT, NoHeader, self._silent)
        table.register(BYE, NoHeader, lambda connection, request, body: connection.close())
        self.server = RemotingServer(table)
        self.held: list[tuple[ServerConnection, Request[Any]]] = []
        self.oneways = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def connections(self) -> list[ServerConnection]:
        return list(self.server.connections)

    def _echo(self, connection: Any, request: Request[GetMaxOffsetRequestHeader], body: bytes) -> Response:
        self.oneways += request.oneway
        return Response(header=GetMaxOffsetResponseHeader(request.header.queue_id), body=body)

    def _silent(self, connection: Any, request: Request[NoHeader], body: bytes) -> None:
        self.held.append((connection, request))


@pytest.fixture
async def echo() -> AsyncIterator[Server]:
    server = Server()
    await server.server.start("127.0.0.1", 0)
    yield server
    await server.server.stop()


async def ask(client: RemotingClient, echo: Server, number: int) -> int:
    answer = await client.invoke(echo.address, ECHO, GetMaxOffsetRequestHeader("t", number), b"%d" % number)
    assert answer.body == b"%d" % number
    return answer.header(GetMaxOffsetResponseHeader).offset


async def test_many_requests_share_one_connection_and_each_gets_its_answer(echo: Server) -> None:
    async with RemotingClient() as client:
        numbers = range(500)
        assert await asyncio.gather(*(ask(client, echo, number) for number in numbers)) == list(numbers)
        assert len(echo.connections) == 1


async def test_answers_may_come_in_any_order(echo: Server) -> None:
    async with RemotingClient() as client:
        calls = [asyncio.create_task(client.invoke(echo.address, SILENT, None, timeout_s=10)) for _ in range(3)]
        await until(lambda: len(echo.held) == 3)
        for number, (connection, request) in reversed(list(enumerate(echo.held))):
            connection.respond(request, Response(body=b"%d" % number))
        assert [answer.body for answer in await asyncio.gather(*calls)] == [b"0", b"1", b"2"]


async def test_requests_sent_together_are_answered_in_their_order(echo: Server) -> None:
    seen: list[int] = []
    hook = ClientRpcHook(after=lambda _, request, response: seen.append(request.opaque))
    async with RemotingClient(hooks=[hook], max_in_flight=3) as client:
        call = asyncio.create_task(client.invoke_all(echo.address, [(SILENT, None)] * 3, timeout_s=10))
        await until(lambda: len(echo.held) == 3)
        for number, (connection, request) in reversed(list(enumerate(echo.held))):
            connection.respond(request, Response(body=b"%d" % number))
        assert [answer.body for answer in await call] == [b"0", b"1", b"2"]
        assert seen == sorted(seen)
        assert len(seen) == 3
        numbers = range(20)  # more than may be in flight
        answers = await client.invoke_all(echo.address, [(ECHO, GetMaxOffsetRequestHeader("t", n)) for n in numbers])
        assert [answer.header(GetMaxOffsetResponseHeader).offset for answer in answers] == list(numbers)
        assert await client.invoke_all(echo.address, []) == []


async def test_requests_sent_together_fail_together_and_leave_nothing_behind(echo: Server) -> None:
    async with RemotingClient() as client:
        requests = [(ECHO, GetMaxOffsetRequestHeader("t", 1)), (SILENT, None), (SILENT, None)]
        with pytest.raises(RemotingTimeoutError):
            await client.invoke_all(echo.address, requests, timeout_s=0.1)
        connection = client.live(echo.address)
        assert connection is not None
        assert connection.in_flight == 0
        call = asyncio.create_task(client.invoke_all(echo.address, requests, timeout_s=10))
        await until(lambda: len(echo.held) == 4)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert connection.in_flight == 0
        assert await ask(client, echo, 4) == 4


async def test_oneway_requests_leave_without_waiting(echo: Server) -> None:
    async with RemotingClient() as client:
        await client.invoke_oneway(echo.address, ECHO, GetMaxOffsetRequestHeader("t", 1))
        await until(lambda: echo.oneways == 1)


async def test_a_request_without_answer_times_out_and_the_next_one_works(echo: Server) -> None:
    async with RemotingClient() as client:
        with pytest.raises(RemotingTimeoutError, match=r"0\.2 s") as caught:
            await client.invoke(echo.address, SILENT, timeout_s=0.2)
        assert caught.value.address == echo.address
        assert caught.value.next_step
        assert await ask(client, echo, 5) == 5


async def test_time_outs_go_by_the_clock_given(echo: Server) -> None:
    clock = VirtualClock()
    async with RemotingClient(clock=clock) as client:
        call = asyncio.create_task(client.invoke(echo.address, SILENT, timeout_s=3600))
        await until(lambda: echo.held)
        clock.advance(3599)
        await asyncio.sleep(0)
        assert not call.done()
        clock.advance(2)
        with pytest.raises(RemotingTimeoutError):
            await call


async def test_a_connection_that_stays_silent_is_given_up(echo: Server) -> None:
    async with RemotingClient() as client:
        with pytest.raises(RemotingTimeoutError):
            await client.invoke(echo.address, SILENT, timeout_s=0.2)
        ((first, _),) = echo.held
        await ask(client, echo, 1)
        await until(lambda: first not in echo.connections)


async def test_a_lost_connection_fails_its_requests_and_is_opened_again(echo: Server) -> None:
    async with RemotingClient() as client:
        waiting = asyncio.create_task(client.invoke(echo.address, SILENT, timeout_s=10))
        with pytest.raises(RemotingSendError):
            await client.invoke(echo.address, BYE, timeout_s=10)
        with pytest.raises(RemotingSendError):
            await waiting
        assert await ask(client, echo, 2) == 2


async def test_a_refused_connection_says_so() -> None:
    async with RemotingClient() as client:
        with pytest.raises(RemotingConnectError, match="cannot connect") as caught:
            await client.invoke("127.0.0.1:1", ECHO)
        assert isinstance(caught.value.cause, OSError)


async def test_no_more_requests_wait_than_allowed(echo: Server) -> None:
    async with RemotingClient(max_in_flight=2) as client:
        calls = [asyncio.create_task(client.invoke(echo.address, SILENT, timeout_s=10)) for _ in range(2)]
        await until(lambda: len(echo.held) == 2)
        with pytest.raises(RemotingTooMuchRequestError):
            await client.invoke(echo.address, ECHO, GetMaxOffsetRequestHeader("t", 1), timeout_s=0.1)
        third = asyncio.create_task(ask(client, echo, 3))
        await asyncio.sleep(0)
        for connection, request in echo.held:
            connection.respond(request, Response())
        assert await third == 3
        await asyncio.gather(*calls)


async def test_a_cancelled_call_leaves_nothing_behind(echo: Server) -> None:
    async with RemotingClient() as client:
        call = asyncio.create_task(client.invoke(echo.address, SILENT, timeout_s=10))
        await until(lambda: echo.held)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        connection = client.live(echo.address)
        assert connection is not None
        assert connection.in_flight == 0
        held, request = echo.held[0]
        held.respond(request, Response())
        assert await ask(client, echo, 4) == 4


async def test_requests_of_the_server_are_answered(echo: Server) -> None:
    processors = ProcessorTable()
    processors.register(40, GetMaxOffsetRequestHeader, lambda connection, request, body: Response(body=b"from " + body))
    async with RemotingClient(processors=processors) as client:
        await ask(client, echo, 1)
        (connection,) = echo.connections
        answer = await connection.invoke(40, GetMaxOffsetRequestHeader("t", 1), b"me")
        assert (answer.code, answer.body) == (0, b"from me")
        assert (await connection.invoke(41, None)).code == 3


async def test_hooks_see_and_may_change_requests(echo: Server) -> None:
    seen: list[tuple[str, int]] = []

    def change(peer: str, request: RemotingCommand) -> None:
        request.ext_fields["queueId"] = "9"

    def see(peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        seen.append((peer, response.code))

    async with RemotingClient(hooks=[ClientRpcHook(before=change), ClientRpcHook(after=see)]) as client:
        answer = await client.invoke(echo.address, ECHO, GetMaxOffsetRequestHeader("t", 1))
    assert answer.header(GetMaxOffsetResponseHeader).offset == 9
    assert seen == [(echo.address, 0)]


async def test_closing_ends_what_waits_and_refuses_what_comes(echo: Server) -> None:
    client = RemotingClient()
    call = asyncio.create_task(client.invoke(echo.address, SILENT, timeout_s=10))
    await until(lambda: echo.held)
    await client.close()
    with pytest.raises(RemotingSendError):
        await call
    with pytest.raises(RemotingClosedError):
        await client.invoke(echo.address, ECHO)


async def test_a_client_that_finishes_sends_nothing_more_on_any_connection(echo: Server) -> None:
    for rounds in range(30):  # the connection may not be open yet
        async with RemotingClient() as client:
            call = asyncio.ensure_future(client.invoke(echo.address, SILENT))
            for _ in range(rounds):
                await asyncio.sleep(0)
            client.finish()
            with pytest.raises(RemotingClosedError):
                await ask(client, echo, 1)
            with pytest.raises((RemotingClosedError, RemotingSendError)):
                await asyncio.wait_for(call, 10)  # the server closes the connection


async def test_a_call_that_is_cancelled_while_its_client_finishes_is_cancelled(echo: Server) -> None:
    for rounds in range(30):
        async with RemotingClient() as client:
            call = asyncio.ensure_future(client.invoke(echo.address, SILENT))
            for _ in range(rounds):
                await asyncio.sleep(0)
            client.finish()
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled(), rounds


async def test_after_a_fork_the_error_says_what_to_do(echo: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RemotingClient() as client:
        await ask(client, echo, 1)
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(ForkedError, match="create a new client after the fork"):
            await ask(client, echo, 1)
        monkeypatch.undo()


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, fastest_loop()])


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ClientConnection, socket.socket]]:
    """A connection, and its server's socket, which does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection("server", SYSTEM_CLOCK, 100, ProcessorTable(), lambda _: None, 1 << 20),
            "127.0.0.1",
            port,
        )
        server, _ = listener.accept()
    with server:
        server.setblocking(False)
        yield connection, server
        connection.abort("the test is over")
        await connection.gone


def received(server: socket.socket) -> bytes | None:
    """The bytes that have come; ``None`` while there are none."""
    try:
        return server.recv(1 << 20)
    except BlockingIOError:
        return None


@LOOPS
def test_large_requests_and_many_small_ones_leave_before_the_turn_of_the_loop_ends(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The server works on them while the client makes the next."""

    async def write() -> None:
        async with connected() as (connection, server):
            connection.write(b"small")
            assert received(server) is None
            connection.write(bytes(LARGE_FRAME_BYTES))
            assert received(server) == b"small" + bytes(LARGE_FRAME_BYTES)
            small = bytes(LARGE_FRAME_BYTES // 4)
            for _ in range(WRITE_BYTES // len(small) - 1):
                connection.write(small)
            assert received(server) is None
            connection.write(small)
            assert received(server) == bytes(WRITE_BYTES)
            connection.write(b"last")
            await until(lambda: received(server) == b"last")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write())


@LOOPS
def test_no_more_requests_are_accepted_while_the_server_does_not_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def write() -> None:
        async with connected() as (connection, server):
            for _ in range(1000):
                connection.write(bytes(64 * 1024))
                await asyncio.sleep(0)
                if not connection.has_room:
                    break
            assert not connection.has_room
            await until(lambda: received(server) is None and connection.has_room)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write())


async def test_garbage_from_the_server_ends_the_connection_not_the_client() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(garbage, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    async with RemotingClient() as client:
        with pytest.raises(RemotingSendError, match="invalid frame: it is HTTP, not RocketMQ's protocol"):
            await client.invoke(f"{host}:{port}", ECHO)
    listener.close()
    await listener.wait_closed()
