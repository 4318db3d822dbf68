"""Connections whose protocol is not yet known."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.helpers.waiting import until

from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import HANDSHAKE_SECONDS
from cometmq.remoting.tls.opening import (
    ABORTED_AT_ONCE,
    MOST_OPENED_AT_ONCE,
    OPENED_AT_ONCE,
    OPENED_IN_A_SECOND,
    OpeningConnections,
)
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls
from cometmq.testing import VirtualClock


def silent(_descriptor: int) -> asyncio.Protocol:
    return asyncio.Protocol()


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_stop_in_the_round_of_an_accept_closes_the_socket(rounds: int) -> None:
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=SYSTEM_CLOCK, silence_s=10)
    accepted, client = socket.socketpair()
    accepted.setblocking(False)
    with client:
        openings.accept(accepted)
        for _ in range(rounds):
            await asyncio.sleep(0)
        await openings.stop()
        await asyncio.sleep(0)
        assert accepted.fileno() == -1
        assert client.recv(1) == b""


async def test_many_accepted_sockets_are_opened_some_in_each_round(clock: VirtualClock) -> None:
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=clock, silence_s=10)
    pairs = [socket.socketpair() for _ in range(3 * OPENED_AT_ONCE)]
    for accepted, _ in pairs:
        accepted.setblocking(False)
        openings.accept(accepted)
    assert len(openings) == len(pairs), "those that are not opened yet count"
    begun = []
    while len(openings._open) < len(pairs):
        await asyncio.sleep(0)
        begun.append(len(openings._open))
    assert begun[0] == OPENED_AT_ONCE
    assert max(after - before for before, after in zip([0, *begun], begun, strict=False)) == OPENED_AT_ONCE
    openings.abort_oldest()
    await openings.stop()
    close(pairs)


async def test_a_socket_that_no_transport_takes_does_not_keep_those_behind_it_waiting(clock: VirtualClock) -> None:
    """The loop refuses it with a ``ValueError``; without another round, the port would accept and never answer."""
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=clock, silence_s=10)
    odd, client = socket.socketpair(type=socket.SOCK_DGRAM)
    pairs = [socket.socketpair() for _ in range(2 * OPENED_AT_ONCE)]
    for accepted in (odd, *(accepted for accepted, _ in pairs)):
        accepted.setblocking(False)
        openings.accept(accepted)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (odd.fileno(), len(openings._open)) == (-1, len(pairs))
    client.close()
    await openings.stop()
    close(pairs)


async def test_more_sockets_are_opened_in_a_round_after_long_rounds(clock: VirtualClock) -> None:
    """Clients that are there already, and send as much as they can, do not keep others waiting for many rounds."""
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=clock, silence_s=10)
    pairs = [socket.socketpair() for _ in range(3 * MOST_OPENED_AT_ONCE)]
    for accepted, _ in pairs:
        accepted.setblocking(False)
        openings.accept(accepted)
    opened = []
    for seconds in (0.01, 1.0):
        before = len(openings._open)
        clock.advance(seconds)
        while len(openings._open) == before:
            await asyncio.sleep(0)
        opened.append(len(openings._open) - before)
    assert opened == [OPENED_IN_A_SECOND // 100, MOST_OPENED_AT_ONCE]
    await openings.stop()
    close(pairs)


def close(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    for _, client in pairs:
        with client:
            assert client.recv(1) == b""


async def test_connections_that_send_nothing_end_after_their_time_some_in_each_round(clock: VirtualClock) -> None:
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=clock, silence_s=10)
    pairs = [socket.socketpair() for _ in range(2 * ABORTED_AT_ONCE + 2)]

    async def open_some(some: list[tuple[socket.socket, socket.socket]]) -> None:
        before = len(openings._open)
        for accepted, _ in some:
            accepted.setblocking(False)
            openings.accept(accepted)
        while len(openings._open) < before + len(some):
            await asyncio.sleep(0)

    *early, speaking, late = pairs
    await open_some([*early, speaking])
    clock.advance(4)
    await open_some([late])
    clock.advance(5.9)
    assert len(openings) == len(pairs)
    speaking[1].send(b"\0")
    await until(lambda: len(openings) == len(pairs) - 1)
    speaking[1].close()
    await until(lambda: speaking[0].fileno() == -1)
    clock.advance(0.2)
    left = [len(openings)]
    while left[-1] > 1:
        await asyncio.sleep(0)
        left.append(len(openings))
    assert left == [ABORTED_AT_ONCE + 1, 1]
    await asyncio.sleep(0)
    clock.advance(3.8)
    assert len(openings) == 1, "the last one came later"
    clock.advance(0.2)
    assert not len(openings)
    await openings.stop()
    close([*early, late])


async def test_a_handshake_that_begins_late_has_its_whole_time(clock: VirtualClock) -> None:
    openings = OpeningConnections(silent, ServerTls(TlsOptions()), clock=clock, silence_s=120)
    accepted, client = socket.socketpair()
    accepted.setblocking(False)
    openings.accept(accepted)
    await until(lambda: openings._open)
    (opening,) = openings._open
    clock.advance(119)
    client.send(b"\x16")
    await until(lambda: opening._handshake_ends is not None)
    clock.advance(HANDSHAKE_SECONDS - 0.1)
    assert len(openings) == 1
    clock.advance(0.2)
    assert not len(openings)
    await openings.stop()
    close([(accepted, client)])
