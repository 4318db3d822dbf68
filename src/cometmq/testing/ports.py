"""Finds free ports for test servers."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections import deque
from typing import Final

from cometmq.message.ports import FAST_PORT_DISTANCE, HA_PORT_DISTANCE

_FIRST: Final = 20_000
_LAST: Final = 31_999
"""Last port to try. It is below the ports that Linux assigns to outgoing connections."""
_ATTEMPTS: Final = 1_000
_BESIDE: Final = (-FAST_PORT_DISTANCE, 0, HA_PORT_DISTANCE)
"""The ports that a broker uses, relative to its own port."""

_KEPT: Final = 33
_given: deque[dict[int, int]] = deque()
"""Recently returned ports with their claims, since a port's server may not be listening yet."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port whose neighbors are free too, because a broker also uses them.

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
    raise OSError(f"no three consecutive ports are free between {_FIRST} and {_LAST}")


def _claim_all(host: str, ports: list[int]) -> dict[int, int]:
    """Claim all ports and return the claims; if a port is taken, return no claims."""
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
    """Claim a port on this machine and return the descriptor of its socket, or None if the port is already claimed."""
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
