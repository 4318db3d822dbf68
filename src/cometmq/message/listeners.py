"""The addresses at which clients reach a broker, by listener.

A *listener* is a name for a port of the nameserver, or for a network from which clients connect. A broker advertises a
default address, and further addresses for the clients of a listener, for example clients outside a container network,
behind a tunnel, or at a port of a Kubernetes node. A route contains the addresses for the listener that received the
request. (Kafka does the same with ``listeners`` and ``advertised.listeners``.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.limits import MAX_ADDRESS_CHARS, MAX_LISTENERS
from cometmq.message.hosts import Network, format_address, parse_address, parse_network, parsed_ip, unmapped

EVERY_CLIENT: Final = ""
"""The listener name of the default address."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")


class Advertised(NamedTuple):
    """An address to which clients connect."""

    host: str
    """A host name, or an address with no brackets."""
    port: int
    """The port; 0 means the port on which the broker listens."""

    def at(self, port: int) -> str:
        """Return ``host:port``, using ``port`` if the address has no port of its own."""
        return format_address(self.host, self.port or port)


class Listeners(NamedTuple):
    """The rules by which a nameserver determines a client's listener."""

    ports: Mapping[str, int]
    """The ports on which the nameserver listens, by name."""
    networks: tuple[tuple[str, Network], ...]
    """Client networks with their listener names; the first match wins."""

    def of(self, port_name: str, client_ip: str) -> str:
        """Return the client's listener according to its port or network, or :data:`EVERY_CLIENT` if neither matches."""
        if port_name or not self.networks:
            return port_name
        ip = parsed_ip(client_ip)
        return next((name for name, network in self.networks if ip in network), EVERY_CLIENT)


def parse_advertised(text: str) -> dict[str, Advertised]:
    """Parse ``HOST[:PORT]`` and ``LISTENER=HOST[:PORT]``, separated by commas.

    :raises ValueError: the text is malformed; the message says in which way.
    """
    found: dict[str, Advertised] = {}
    for part in _parts(text):
        name, equals, address = part.rpartition("=")
        _enter(found, _name(name, part) if equals else EVERY_CLIENT, _advertised(address.strip()), part)
    return found


def parse_listeners(text: str) -> Listeners:
    """Parse ``NAME=PORT`` and ``NAME=NETWORK`` (``10.8.0.0/16``), separated by commas.

    :raises ValueError: the text is malformed; the message says in which way.
    """
    ports: dict[str, int] = {}
    networks: dict[str, Network] = {}
    for part in _parts(text):
        before, equals, place = part.partition("=")
        if not equals:
            raise ValueError(
                f"{part!r} must be NAME=PORT or NAME=NETWORK, for example outside=19876 or vpn=10.8.0.0/16"
            )
        name, place = _name(before, part), place.strip()
        if name in ports or name in networks:
            raise ValueError(f"listener {name!r} is defined twice")
        if place.isascii() and place.isdigit():
            if not int(place) <= 65_535:
                raise ValueError(f"{part!r}: the maximum port is 65535")
            ports[name] = int(place)
            continue
        try:
            networks[name] = parse_network(place)
        except ValueError as error:
            raise ValueError(f"{part!r} must have a port or a network: {error}") from None
    return Listeners(ports, tuple(networks.items()))


def parse_registered(text: str) -> dict[str, str]:
    """Parse the addresses that a broker registers for listeners (``listenerAddrs``); each address needs a port.

    :raises ValueError: the text is malformed.
    """
    if len(text) > MAX_LISTENERS * (MAX_ADDRESS_CHARS + 32):
        raise ValueError("the list of listener addresses is too long")
    found = parse_advertised(text)
    if any(address.port == 0 for address in found.values()) or EVERY_CLIENT in found:
        raise ValueError("each listener address needs a name and a port")
    return {name: address.at(0) for name, address in found.items()}


def format_registered(addresses: Mapping[str, str]) -> str:
    """Format addresses in the form that :func:`parse_registered` reads."""
    return ",".join(f"{name}={address}" for name, address in addresses.items())


def format_advertised(addresses: Mapping[str, Advertised]) -> str:
    """Format addresses in the form that :func:`parse_advertised` reads."""
    return ",".join(
        (f"{name}=" if name else "")
        + (address.at(0) if address.port else f"[{address.host}]" if ":" in address.host else address.host)
        for name, address in addresses.items()
    )


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_LISTENERS:
        raise ValueError(f"{len(parts)} addresses are too many; the maximum is {MAX_LISTENERS}")
    return parts


def _name(text: str, part: str) -> str:
    name = text.strip()
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{part!r}: a listener name is a letter and up to 30 further letters, digits, underscores or hyphens"
        )
    return name


def _advertised(text: str) -> Advertised:
    host, port = text, 0
    bare = text.removeprefix("[")
    has_port = "]:" in bare if bare != text else text.count(":") == 1
    if has_port:
        host, port = parse_address(text)
        if port == 0:
            raise ValueError(f"{text!r}: clients cannot connect to port 0")
    host = unmapped(host.removeprefix("[").removesuffix("]"))
    if len(host) > MAX_ADDRESS_CHARS - 8 or _HOST.fullmatch(host) is None:
        raise ValueError(f"the address does not have the form HOST or HOST:PORT: {text[:100]!r}")
    if host in ("0.0.0.0", "::"):
        raise ValueError(f"{host} is only an address to listen on; specify an address to which clients can connect")
    return Advertised(host, port)


def _enter(found: dict[str, Advertised], name: str, address: Advertised, part: str) -> None:
    if name in found:
        what = f"listener {name!r}" if name else "the address for every client"
        raise ValueError(f"{what} is defined twice, the second time as {part!r}")
    found[name] = address
