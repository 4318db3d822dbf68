"""The client's address on a connection, in all forms that are needed."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, NamedTuple

from cometmq.message.hosts import decode_host, encode_host, format_address, unmapped

_UNKNOWN: Final = ("0.0.0.0", 0)
"""The address of a client that has already disconnected."""
_PORT: Final = struct.Struct(">i")


class Peer(NamedTuple):
    """A client's address."""

    ip: str
    """Without the zone of a link-local address, such as ``fe80::1%eth0``."""
    port: int
    stored: bytes
    """The stored form; see :mod:`cometmq.message.hosts`."""
    text: str
    """``ip:port``; an IPv6 address is in brackets and keeps its zone."""


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return the address of the client at the other end of a transport."""
    ip, port = (transport.get_extra_info("peername") or _UNKNOWN)[:2]
    if ":" not in ip:  # thousands of clients connect when a broker has started
        return Peer(ip, port, socket.inet_pton(socket.AF_INET, ip) + _PORT.pack(port), f"{ip}:{port}")
    host = unmapped(ip)
    stored = encode_host(host, port)
    return Peer(decode_host(stored)[0], port, stored, format_address(host, port))
