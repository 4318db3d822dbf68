"""Find free ports for the servers of a test."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections import deque
from typing import Final

from cometmq.broker.controller import HA_PORT_DISTANCE
from cometmq.broker.ports import FAST_PORT_DISTANCE

_FIRST: Final = 20_000
_LAST: Final = 31_999
"""Range of ports to try. It is below the ports of Linux's outgoing connections, which could occupy a port before its
server does.
"""
_ATTEMPTS: Final = 1_000
_BESIDE: Final = (-FAST_PORT_DISTANCE, 0, HA_PORT_DISTANCE)
"""A broker uses two more ports next to its own."""

_KEPT: Final = 33
_given: deque[dict[int, int]] = deque()
"""Recently returned ports with their claims; the server of a port may not listen yet, or may be restarting."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port whose neighbours are free too, since a broker also uses them.

    On Linux this function returns these ports to no other process, even while no server listens.

    :raises OSError: no port is free.
    """
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST, _LAST)
        claims = _claim_all(host, [port + step for step in _BESIDE])
        if claims:
            _given.append(claims)
            if len(_given) > _KEPT:
                _release(_given.popleft())
            return port
    raise OSError(f"found no three free ports in a row between {_FIRST} and {_LAST}")


def _claim_all(host: str, ports: list[int]) -> dict[int, int]:
    """Claim every port and return the claims; return no claims if a port is taken."""
    claims: dict[int, int] = {}
    for port in ports:
        claim = _claim(port)
        if claim is not None:
            claims[port] = claim
        if claim is None or not _is_free(host, port):
            _release(claims)
            return {}
    return claims


def _claim(port: int) -> int | None:
    """Claim a port among this machine's processes. Return the descriptor of a socket that is named after the port; None
    if the port is taken.
    """
    if any(port in claims for claims in _given):
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            claim.bind(f"\0cometmq-port-{port}")  # an abstract name, which is freed when its process ends
        except OSError:
            claim.close()
            return None
    return claim.detach()


def _release(claims: dict[int, int]) -> None:
    for claim in claims.values():
        os.close(claim)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
