"""A server that stops: every request that it has read is answered, and after the answers each connection is reset.

After a plain end, Java clients of RocketMQ 4 would wait for the answers to requests under way until their timeout.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Self

import pytest
import trustme
from tests.remoting.serving import BIG, Service, max_offset

from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import NoHeader, SendMessageRequestHeaderV2
from cometmq.remoting.processors import Response
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls

PATIENCE_S = 60


class Socket:
    """A client that keeps nothing for itself: what it reads is what its system has received."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = FrameDecoder()
        self.is_reset = False

    @classmethod
    async def connect(cls, service: Service, *, receive_buffer: int = 0) -> Self:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", service.server.port))
        return cls(sock)

    async def send(self, *commands: RemotingCommand) -> None:
        data = b"".join(command.encode() for command in commands)
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def next(self) -> RemotingCommand | None:
        """The next frame, or None at the end, which may be a reset."""
        while (frame := self.decoder.next()) is None:
            try:
                receiving = asyncio.get_running_loop().sock_recv(self.sock, 65536)
                data = await asyncio.wait_for(receiving, PATIENCE_S)
            except ConnectionResetError:
                self.is_reset = True
                return None
            if not data:
                return None
            self.decoder.push(data)
        return decode_command(frame)

    async def all(self) -> list[RemotingCommand]:
        """All frames until the end."""
        frames = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        await self.send(command)
        answer = await self.next()
        assert answer is not None
        return answer


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Socket]:
    client = await Socket.connect(service)
    assert (await client.ask(RemotingCommand(code=34, opaque=1))).code == 0
    yield client
    client.sock.close()


async def test_a_connection_ends_with_a_reset_behind_its_answers(service: Service, client: Socket) -> None:
    service.kept[0].send_oneway(40, NoHeader())
    await client.send(*[max_offset(opaque) for opaque in range(2, 9)])
    await service.server.stop()
    frames = await client.all()
    assert [frame.code for frame in frames if frame.flag == 2] == [40]
    assert [frame.opaque for frame in frames if frame.flag == 1] == [2, 3, 4, 5, 6, 7, 8]
    assert client.is_reset


async def test_a_connection_without_any_request_ends_with_a_reset(service: Service, client: Socket) -> None:
    await service.server.stop()
    assert await client.all() == []
    assert client.is_reset
    assert service.closed == service.kept


async def test_a_connection_is_reset_when_nothing_has_arrived_for_a_moment(service: Service, client: Socket) -> None:
    """A Java 4 client that finds the reset when it writes does not fail its other requests."""
    connection = service.kept[0]
    connection.end_if_quiet()
    assert not connection.is_closing
    await client.ask(max_offset(2))
    connection.end_if_quiet()
    assert not connection.is_closing
    while service.server.connections:  # the client's system confirms the answer
        connection.end_if_quiet()
        await asyncio.sleep(0)
    assert await client.all() == []
    assert client.is_reset


async def test_a_client_that_always_asks_is_answered_and_reset_at_once(service: Service, client: Socket) -> None:
    stopping = asyncio.ensure_future(service.server.stop())
    opaque = 1
    try:
        while True:
            opaque += 1
            await client.send(max_offset(opaque))
            answer = await client.next()
            if answer is None:
                break
            assert answer.opaque == opaque
    except (BrokenPipeError, ConnectionResetError):
        client.is_reset = True
    await stopping
    assert client.is_reset
    assert opaque < 100


async def test_a_client_with_many_requests_under_way_is_reset(service: Service, client: Socket) -> None:
    """It always has some, and gets whole answers, in order."""

    async def flood() -> None:
        opaque = 1
        try:
            while True:
                opaque += 1
                await client.send(max_offset(opaque))
                await asyncio.sleep(0)
        except ConnectionResetError:
            client.is_reset = True
        except BrokenPipeError:  # the reader has found the end
            pass

    flooding = asyncio.ensure_future(flood())
    reading = asyncio.ensure_future(client.all())
    await service.server.stop()
    frames = await reading
    await asyncio.wait_for(flooding, PATIENCE_S)
    assert client.is_reset
    assert [frame.opaque for frame in frames] == list(range(2, 2 + len(frames)))


async def test_a_slow_reader_gets_all_answers_and_then_the_reset(service: Service) -> None:
    slow = await Socket.connect(service, receive_buffer=65536)
    await slow.send(RemotingCommand(code=32, opaque=1), max_offset(2))
    while not service.big_answers:
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(service.server.stop())
    await asyncio.sleep(0)
    frames = await slow.all()
    await stopping
    assert [(frame.opaque, len(frame.body)) for frame in frames] == [(1, len(BIG)), (2, 0)]
    assert slow.is_reset
    slow.sock.close()


async def test_a_client_that_never_reads_does_not_hold_the_server_up(service: Service) -> None:
    deaf = await Socket.connect(service, receive_buffer=4096)
    await deaf.send(RemotingCommand(code=32, opaque=1), RemotingCommand(code=32, opaque=2))
    while not service.big_answers:
        await asyncio.sleep(0)
    await service.server.stop()
    while service.server.connections:
        await asyncio.sleep(0)
    deaf.sock.close()


def send(opaque: int, language: str) -> RemotingCommand:
    fields = dict.fromkeys("abcdefghijkl", "1") | {"g": "0"}
    return RemotingCommand(code=310, opaque=opaque, ext_fields=fields, body=b"x", language=language)


async def test_sends_of_java_clients_are_left_to_the_reset_once_the_server_is_halted(service: Service) -> None:
    """Java clients do not repeat asynchronous sends that are refused; others wait for an answer also after a reset."""
    refused = Response(14, remark="service not available now")
    service.table.register(310, SendMessageRequestHeaderV2, lambda conn, request, body: refused)
    client = await Socket.connect(service)
    assert (await client.ask(send(1, "JAVA"))).code == 14
    service.server.halt()
    await client.send(send(2, "JAVA"), send(3, "GO"), send(4, "JAVA"), max_offset(5, language="JAVA"))
    frames = [await client.next() for _ in range(2)]
    assert [(frame.opaque, frame.code) for frame in frames if frame is not None] == [(3, 14), (5, 0)]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", service.server.port)
    await service.server.stop()
    assert await client.all() == []
    assert client.is_reset
    client.sock.close()


async def test_with_tls_a_connection_ends_with_a_reset_too(service: Service) -> None:
    await service.server.stop()
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    with issued.private_key_pem.tempfile() as key, issued.cert_chain_pems[0].tempfile() as cert:
        options = TlsOptions(tls_server_cert_path=cert, tls_server_key_path=key, tls_test_mode_enable=False)
        service.server = RemotingServer(service.table, clock=service.clock, tls=ServerTls(options))
        await service.server.start("127.0.0.1", 0, (service.end_round,))
        reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port, ssl=context)
    writer.write(max_offset(1).encode())
    decoder = FrameDecoder()
    while (frame := decoder.next()) is None:
        decoder.push(await asyncio.wait_for(reader.read(65536), PATIENCE_S))
    assert decode_command(frame).opaque == 1
    stopping = asyncio.ensure_future(service.server.stop())
    with pytest.raises(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"an end without a reset"
    await stopping
    writer.close()
