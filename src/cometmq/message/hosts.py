"""Addresses of hosts: text, tuple, and the 8 or 20 bytes that records store.

Stored form: 4 bytes of IPv4 or 16 of IPv6, then the port as int32 (``MessageExt.socketAddress2ByteBuffer``).
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Final

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
_PORT: Final = struct.Struct(">i")
_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses reserved for documentation: a route to them shows the own address; nothing is sent."""


def own_ip() -> str:
    """Return this host's outer IPv4 address, else its IPv6 address, else the loopback address."""
    for family, target in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def ip_of(host: str) -> str:
    """Return the address of a host, IPv4 if it has one; blocks while a name is looked up.

    :raises OSError: the name has no address.
    """
    with suppress(ValueError):
        encode_host(host, 0)
        return host
    found = {family: str(address[0]) for family, _, _, _, address in socket.getaddrinfo(host, None)}
    return found.get(socket.AF_INET) or found[socket.AF_INET6]


def encode_host(ip: str, port: int) -> bytes:
    """Encode an address as records store it: 8 bytes for IPv4 (also IPv4 mapped into IPv6), 20 for IPv6.

    :raises ValueError: ``ip`` is not a literal address.
    """
    if ip.startswith("::ffff:") and "." in ip:
        ip = ip[7:]
    try:
        if ":" in ip:
            return socket.inet_pton(socket.AF_INET6, ip.partition("%")[0]) + _PORT.pack(port)
        return socket.inet_pton(socket.AF_INET, ip) + _PORT.pack(port)
    except OSError as error:
        raise ValueError(f"not an IP address: {ip!r}") from error


def decode_host(stored: bytes) -> tuple[str, int]:
    """Decode ``(ip, port)`` of a stored address of 8 or 20 bytes."""
    family = socket.AF_INET if len(stored) == IPV4_HOST_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, stored[:-4]), _PORT.unpack_from(stored, len(stored) - 4)[0]


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``(host, port)`` of ``host:port``, ``[v6]:port`` or Java's ``v6:port``.

    :raises ValueError: there is no port, or it is not from 0 to 65535.
    """
    host, separator, port_text = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"not an address of the form host:port: {text!r}")
    return host, int(port_text)


def split_addresses(text: str) -> tuple[str, ...]:
    """Split a list of addresses joined by ``;`` or ``,``; each once, unchecked."""
    return tuple(dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip()))


def format_address(host: str, port: int) -> str:
    """Format ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_here(host: str, port: int) -> str:
    """The ``host:port`` at which a program on this machine reaches a server that listens on ``host``."""
    return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
