"""The address that others reach this host at, where the configuration names none."""

from __future__ import annotations

import socket
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses reserved for documentation: choosing a route to them tells the own address, nothing is sent."""


def local_address() -> str:
    """This host's IPv4 address, else its IPv6 address, else the loopback address."""
    for family, target in _PROBES:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return _LOOPBACK
