"""Offset ids that somebody brings: each holds an address, and only those of brokers of the cluster are connected to.

A request is signed: another server would get a signature that a broker takes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterable

from cometmq.client.errors import UnknownBrokerError
from cometmq.message.hosts import format_address, parse_address
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.bodies import BrokerData


async def place_of(offset_msg_id: str, brokers: Iterable[BrokerData]) -> tuple[str, int]:
    """Return the address and the log offset that an offset id holds.

    :param brokers: of the cluster.
    :raises ValueError: it is no offset id.
    :raises UnknownBrokerError: the address is that of no broker of the cluster.
    """
    ip, port, offset = decode_offset_msg_id(offset_msg_id)
    places = [parse_address(address) for broker in brokers for address in broker.broker_addrs.values()]
    hosts = sorted({host for host, known in places if known == port})
    if ip not in hosts and ip not in await asyncio.to_thread(_ips_of, hosts):
        raise UnknownBrokerError(offset_msg_id)
    return format_address(ip, port), offset


def _ips_of(hosts: Collection[str]) -> set[str]:
    """Return the addresses of names: ids hold addresses, also of brokers that advertise names."""
    found: set[str] = set()
    for host in hosts:
        try:
            found.update(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            continue
    return found
