"""Host addresses as text, as tuples, and in the 8 or 20 bytes that records store.

Stored form: 4 bytes for IPv4 or 16 bytes for IPv6, then the port as int32 (``MessageExt.socketAddress2ByteBuffer``).

An IPv4 address that is mapped into IPv6 (``::ffff:10.0.0.1``) is treated as that IPv4 address, as in Java. The zone of
a link-local address (``fe80::1%eth0``) is needed to connect, but it names an interface of one machine, so records and
ids omit it.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
_IPV4_BYTES: Final = 4
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The prefix of IPv4 addresses that are mapped into IPv6."""
_MAPPED_BITS: Final = 96
_NO_NAME: Final = "a host name consists of labels of 1 to 63 characters, separated by dots"
_SHOWN_CHARS: Final = 200
_BACKLOG: Final = 128
_PORT: Final = struct.Struct(">i")
_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses reserved for documentation. The route to them reveals this host's own address; no packet is sent."""


def own_ip() -> str:
    """Return this host's outgoing IPv4 address, or else its IPv6 address, or else the loopback address."""
    for family, target in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def with_port(host: str, port: int) -> str:
    """Return a host with a port, which is the default for hosts that name none; an IPv6 address is in brackets."""
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def addresses_of(host: str | None, port: int | None, flags: int = 0) -> Sequence[Found]:
    """Return a host's TCP addresses, as ``getaddrinfo`` does; this blocks while a name is resolved.

    :raises OSError: the name has no address, which the error names, or is invalid (for example ``a..b``).
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as error:
        reason = error.strerror or str(error)
        raise socket.gaierror(error.errno, f"the host name {host} does not resolve: {reason}") from None
    except ValueError as error:  # an error of the codec for names, or a NUL character
        raise OSError(_NO_NAME) from error


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a non-blocking TCP socket that listens on the first address of a host; port 0 picks a free port.

    :raises OSError: the port is in use, or the address does not belong to this machine.
    """
    family, kind, _, _, address = addresses_of(unmapped(host), port)[0]
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def ip_of(host: str) -> str:
    """Return a host's address, preferably IPv4; this blocks while a name is resolved.

    :raises OSError: the name has no address.
    """
    if stored_ip(host) is not None:
        return host
    found = {family: str(address[0]) for family, _, _, _, address in addresses_of(host, None)}
    return found.get(socket.AF_INET) or found[socket.AF_INET6]


def encode_host(ip: str, port: int) -> bytes:
    """Encode an address in its stored form: 8 bytes for IPv4 (or IPv4 mapped into IPv6), or 20 bytes for IPv6.

    :raises ValueError: ``ip`` is not a literal address.
    """
    try:
        if ":" not in ip:
            return socket.inet_pton(socket.AF_INET, ip) + _PORT.pack(port)
        packed = socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])
    except OSError as error:
        raise ValueError(f"invalid IP address: {ip!r}") from error
    return packed.removeprefix(_MAPPED) + _PORT.pack(port)


def decode_host(stored: bytes) -> tuple[str, int]:
    """Decode a stored address of 8 or 20 bytes to ``(ip, port)``."""
    packed = stored[:-4] if len(stored) == IPV4_HOST_BYTES else stored[:-4].removeprefix(_MAPPED)
    family = socket.AF_INET if len(packed) == _IPV4_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, packed), _PORT.unpack_from(stored, len(stored) - 4)[0]


def unmapped(host: str) -> str:
    """Return the IPv4 address inside a mapped IPv6 address; return any other address or name unchanged."""
    if not host.startswith(("::", "0")) or ":" not in host:
        return host
    with suppress(OSError):
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        if packed.startswith(_MAPPED):
            return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return host


def stored_ip(host: str) -> str | None:
    """Return an address in the form for records and ids, or None for a host name."""
    try:
        return decode_host(encode_host(host, 0))[0]
    except ValueError:
        return None


def parsed_ip(host: str) -> Ip | None:
    """Return an address as an object that can be compared with networks, or None for a host name."""
    text = stored_ip(host)
    return None if text is None else ipaddress.ip_address(text)


def parse_network(text: str, *, strict: bool = True) -> Network:
    """Parse an address or a network, for example ``10.0.0.0/8``; a network of mapped addresses becomes an IPv4 network.

    :param strict: if true, refuse a network that has host bits set.
    :raises ValueError: the text is neither an address nor a network.
    """
    host, slash, bits = text.strip().partition("/")
    network = ipaddress.ip_network(f"{host.partition('%')[0]}{slash}{bits}", strict=strict)
    packed = network.network_address.packed
    if packed.startswith(_MAPPED) and network.prefixlen >= _MAPPED_BITS:
        return ipaddress.IPv4Network((packed.removeprefix(_MAPPED), network.prefixlen - _MAPPED_BITS))
    return network


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``host:port``, ``[v6]:port`` or Java's ``v6:port`` to ``(host, port)``.

    :raises ValueError: the port is missing or not between 0 and 65535, or the host is neither a name nor an address.
    """
    host, separator, port_text = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"the address does not have the form host:port: {text[:_SHOWN_CHARS]!r}")
    if ":" in host and stored_ip(host) is None:
        raise ValueError(
            f"the address does not have the form host:port or, for IPv6, [host]:port: {text[:_SHOWN_CHARS]!r}"
        )
    if not _can_be_host(host):
        raise ValueError(f"{_NO_NAME}: {host[:_SHOWN_CHARS]!r}")
    return host, int(port_text)


def _can_be_host(host: str) -> bool:
    """Return whether a name is valid for the resolver, which raises unexpected errors for invalid names."""
    try:
        return ":" in host or ("\0" not in host and bool(host.encode("idna")))
    except UnicodeError:
        return False


def split_addresses(text: str) -> tuple[str, ...]:
    """Split nameserver addresses joined by ``;`` or ``,``, and drop duplicates. The addresses are not validated.

    ``http://`` before an address is removed, as in Java's clients (``NameServerAddressUtils``).
    """
    parts = (part.strip().removeprefix("http://") for part in text.replace(",", ";").split(";"))
    return tuple(dict.fromkeys(part for part in parts if part))


def format_address(host: str, port: int) -> str:
    """Format an address as ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_here(host: str, port: int) -> str:
    """Return the ``host:port`` at which programs on this machine can reach a server that listens on ``host``."""
    return format_address({"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
