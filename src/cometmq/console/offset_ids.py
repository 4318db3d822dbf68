"""Offset ids that visitors bring: each holds an address, and the console connects only to brokers of its cluster."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from cometmq.client.admin import Admin
from cometmq.message.hosts import parse_address
from cometmq.message.ids import decode_offset_msg_id


async def leads_to_broker(admin: Admin, offset_msg_id: str) -> bool:
    """Tell whether the address in an offset id is that of a broker that the nameserver knows.

    :raises ValueError: it is no offset id.
    """
    ip, port, _ = decode_offset_msg_id(offset_msg_id)
    brokers = (await admin.cluster_info()).broker_addr_table.values()
    places = [parse_address(address) for broker in brokers for address in broker.broker_addrs.values()]
    hosts = sorted({host for host, known in places if known == port})
    return ip in hosts or ip in await asyncio.to_thread(_ips_of, hosts)


def _ips_of(hosts: Iterable[str]) -> set[str]:
    """Return the addresses of names: ids hold addresses, also of brokers that advertise names."""
    found: set[str] = set()
    for host in hosts:
        try:
            found.update(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            continue
    return found
