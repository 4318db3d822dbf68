"""Connections whose protocol is not yet known."""

from __future__ import annotations

import asyncio
import socket

from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.tls.opening import OpeningConnections
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls


async def test_a_stop_in_the_round_of_an_accept_closes_the_socket() -> None:
    openings = OpeningConnections(asyncio.Protocol, ServerTls(TlsOptions()), clock=SYSTEM_CLOCK, silence_s=10)
    accepted, client = socket.socketpair()
    accepted.setblocking(False)
    with client:
        openings.accept(accepted)
        await openings.stop()
        await asyncio.sleep(0)
        assert accepted.fileno() == -1
        assert client.recv(1) == b""
