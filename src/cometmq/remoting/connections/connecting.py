"""Connects to hosts that may have several addresses (RFC 8305, "Happy Eyeballs").

All addresses of a name are tried within one time limit. The next attempt begins once an attempt fails or a short time
has passed, so that an address that does not answer causes little delay. The first connection wins.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from itertools import chain, zip_longest
from ssl import SSLContext
from typing import Any, Final

from cometmq.clock import Clock, wait_for
from cometmq.message.hosts import addresses_of, stored_ip
from cometmq.threads import look_up

HEAD_START_S: Final = 0.25
"""Time after which the next address is tried in parallel."""

Place = tuple[socket.AddressFamily, Any]
"""An address family, and an address in the form that sockets accept."""


async def connect(
    protocol: asyncio.Protocol, host: str, port: int, clock: Clock, limit_s: float, *, tls: SSLContext | None
) -> asyncio.Transport:
    """Connect a protocol to one of a host's addresses, with TLS if a context is given; return the transport.

    :raises TimeoutError: no connection was made within ``limit_s`` seconds.
    :raises OSError: all addresses refused the connection, the name has no address, or TLS failed.
    """
    deadline = clock.monotonic() + limit_s
    sock = await connected_socket(host, port, clock, limit_s)
    name = None if tls is None else stored_ip(host) or host
    loop = asyncio.get_running_loop()
    opening = loop.create_task(loop.create_connection(lambda: protocol, sock=sock, ssl=tls, server_hostname=name))
    try:
        transport, _ = await wait_for(clock, deadline - clock.monotonic(), opening)
    except BaseException:
        sock.close()
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            opening.result()[0].abort()  # the caller was cancelled in the round in which the connection was made
        raise
    return transport


async def connected_socket(host: str, port: int, clock: Clock, limit_s: float) -> socket.socket:
    """Return a socket connected to one of a host's addresses.

    :raises TimeoutError: no address accepted the connection within ``limit_s`` seconds.
    :raises OSError: all addresses refused the connection, or the name has no address.
    """
    connected: set[socket.socket] = set()
    try:
        winner = await wait_for(clock, limit_s, _first(host, port, clock, limit_s, connected))
        connected.remove(winner)
        return winner
    finally:
        for loser in connected:
            loser.close()


def places(host: str, port: int) -> list[Place]:
    """Return a host's addresses, alternating between IPv6 and IPv4; this blocks while the name is resolved.

    :raises OSError: the host has no address.
    """
    flags = socket.AI_NUMERICHOST if stored_ip(host) is not None else 0
    found = addresses_of(host, port, flags)
    each = dict.fromkeys((family, _with_zone(address)) for family, _, _, _, address in found)
    families = list(dict.fromkeys(family for family, _ in each))
    lines: Iterable[list[Place]] = ([place for place in each if place[0] == family] for family in families)
    return [place for place in chain.from_iterable(zip_longest(*lines)) if place is not None]


def _with_zone(address: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an IPv6 address whose text contains its zone, because uvloop reads only the text."""
    host, *rest = address
    return (f"{host}%{rest[2]}", *rest) if len(rest) > 2 and rest[2] else address


async def _first(host: str, port: int, clock: Clock, limit_s: float, connected: set[socket.socket]) -> socket.socket:
    """Return the first connected socket; ``connected`` collects all connected sockets, even after cancellation."""
    left = places(host, port) if stored_ip(host) is not None else await look_up(places, host, port)
    if len(left) == 1:
        return await _connect(left[0], connected)
    head_start_s = min(HEAD_START_S, limit_s / 2 / len(left))
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[OSError] = []
    try:
        while left or running:
            if left:
                running.add(asyncio.create_task(_connect(left.pop(0), connected)))
            done = await _wait(running, clock, head_start_s if left else None)
            running -= done
            for task in done:
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, OSError):
                    raise error
                failures.append(error)
    finally:
        await _cancel_all(running)
    raise failures[0]


async def _wait(
    running: set[asyncio.Task[socket.socket]], clock: Clock, seconds: float | None
) -> set[asyncio.Task[socket.socket]]:
    """Wait up to ``seconds`` for a task to finish; return the finished tasks."""
    if seconds is None:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return done
    pause = asyncio.ensure_future(clock.sleep(seconds))
    waited: list[asyncio.Future[Any]] = [*running, pause]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pause.cancel()
    return {task for task in running if task.done()}


async def _cancel_all(running: set[asyncio.Task[socket.socket]]) -> None:
    """Cancel the attempts that are no longer needed."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _new_socket(family: socket.AddressFamily) -> socket.socket:
    """Create a socket with TCP as the protocol number, so that event loops disable Nagle's algorithm."""
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)


async def _connect(place: Place, connected: set[socket.socket]) -> socket.socket:
    family, address = place
    sock = _new_socket(family)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    connected.add(sock)
    return sock


def connected_in_time(host: str, port: int, clock: Clock, limit_s: float) -> socket.socket:
    """Return a connected socket without an event loop; each address gets a share of the remaining time.

    :raises OSError: no address accepted the connection in time, or the name has no address.
    """
    deadline = clock.monotonic() + limit_s
    left = places(host, port)
    while True:
        family, address = left.pop(0)
        sock = _new_socket(family)
        try:
            sock.settimeout(max(0.001, deadline - clock.monotonic()) / (len(left) + 1))
            sock.connect(address)
        except BaseException as error:
            sock.close()
            if not left or not isinstance(error, OSError):
                raise
        else:
            sock.settimeout(limit_s)
            return sock
