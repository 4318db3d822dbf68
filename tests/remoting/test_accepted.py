"""Accepted sockets belong to the listener, then to a transport, and are closed once."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any, cast

import pytest
from tests.helpers.waiting import until

from cometmq import descriptors
from cometmq.remoting.connections.accepted import AcceptedSocket, acceptor, open_transport


class Heard(asyncio.Protocol):
    """Notes what happens to a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.data = b""
        self.is_made = self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no such base class
        self.is_made = True

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def listening_at(host: str, family: socket.AddressFamily) -> socket.socket:
    listening = socket.create_server((host, 0), family=family)
    listening.setblocking(False)
    return listening


class PublicOnly:
    """A listening socket of a Python without the private method."""

    def __init__(self, listening: socket.socket) -> None:
        self.family, self.accept = listening.family, listening.accept


@pytest.mark.parametrize("kind", [lambda listening: listening, PublicOnly], ids=["as it is", "public methods only"])
@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
async def test_a_transport_of_an_accepted_socket_reads_writes_and_closes_it(
    host: str, family: socket.AddressFamily, kind: Any
) -> None:
    loop = asyncio.get_running_loop()
    with listening_at(host, family) as listening, socket.create_connection(listening.getsockname()[:2]) as client:
        accepted = acceptor(kind(listening), loop)()
        descriptor = accepted.fileno()
        assert not os.get_blocking(descriptor) or isinstance(accepted, AcceptedSocket)
        heard = Heard()
        open_transport(loop, accepted, heard, pytest.fail)
        client.sendall(b"hello")
        await until(lambda: heard.data == b"hello")
        assert not os.get_blocking(descriptor)
        assert heard.transport.get_extra_info("peername")[:2] == client.getsockname()[:2]
        heard.transport.write(b"answer")
        assert await asyncio.to_thread(client.recv, 6) == b"answer"
        heard.transport.abort()
        await until(lambda: heard.is_lost)
        await asyncio.sleep(0)
        assert not is_open(descriptor)


async def test_a_socket_is_closed_by_whoever_has_it_and_never_twice() -> None:
    loop = asyncio.get_running_loop()
    with listening_at("127.0.0.1", socket.AF_INET) as listening:
        with socket.create_connection(listening.getsockname()):
            accepted = acceptor(listening, loop)()
            descriptor = accepted.fileno()
            accepted.close()
            assert (accepted.fileno(), is_open(descriptor)) == (-1, False)
            accepted.close()
        with socket.create_connection(listening.getsockname()):
            accepted = acceptor(listening, loop)()
            is_light = isinstance(accepted, AcceptedSocket)
            heard = Heard()
            open_transport(loop, accepted, heard, pytest.fail)
            assert (accepted.fileno() == -1) == is_light, "another file may get the number after the transport's end"
            await until(lambda: heard.is_made)
            heard.transport.abort()
            await until(lambda: heard.is_lost)


@pytest.mark.filterwarnings("ignore:unclosed resource <TCPTransport")
async def test_what_the_loop_refuses_is_closed() -> None:
    loop = asyncio.get_running_loop()
    readable, writable = os.pipe()
    try:
        accepted = AcceptedSocket(readable, socket.AF_INET)
        with pytest.raises((OSError, AttributeError)):  # asyncio's own loop needs a socket.socket
            open_transport(loop, accepted, Heard(), pytest.fail)
        assert (accepted.fileno(), is_open(readable)) == (-1, False)
    finally:
        os.close(writable)


async def test_nobody_has_connected() -> None:
    with listening_at("127.0.0.1", socket.AF_INET) as listening:
        accept = acceptor(listening, asyncio.get_running_loop())
        with pytest.raises(BlockingIOError):
            accept()


async def test_clients_that_leave_before_they_are_opened_leave_nothing() -> None:
    loop = asyncio.get_running_loop()
    counts = []
    with listening_at("127.0.0.1", socket.AF_INET) as listening:
        accept = acceptor(listening, loop)
        for linger in (b"", struct.pack("ii", 1, 0)):
            client = socket.create_connection(listening.getsockname())
            if linger:  # the client resets the connection
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
            heard = Heard()
            open_transport(loop, accept(), heard, pytest.fail)
            await until(lambda heard=heard: heard.is_lost)  # type: ignore[misc]
            await asyncio.sleep(0)
            counts.append(descriptors.in_use())
    assert counts[0] == counts[1]
