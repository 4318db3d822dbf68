"""Free ports for servers of a test."""

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
"""Below the ports that Linux gives to outgoing connections, which could take a port before its server does."""
_ATTEMPTS: Final = 1_000
_BESIDE: Final = (-FAST_PORT_DISTANCE, 0, HA_PORT_DISTANCE)
"""A broker uses two more ports next to its own."""

_KEPT: Final = 33
_given: deque[dict[int, int]] = deque()
"""Ports returned lately, whose servers may not listen yet or be away for a restart, with their claims."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free, as are those that a broker uses beside it.

    On Linux no other process gets one of them here either, before it listens or while its server is away.

    :raises OSError: there is none.
    """
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST, _LAST)
        claims = _claims(host, [port + step for step in _BESIDE])
        if claims:
            _given.append(claims)
            if len(_given) > _KEPT:
                _give_up(_given.popleft())
            return port
    raise OSError(f"no three free ports next to each other between {_FIRST} and {_LAST}")


def _claims(host: str, ports: list[int]) -> dict[int, int]:
    """A claim for each of the ports; none if one is taken."""
    claims: dict[int, int] = {}
    for port in ports:
        claim = _claim(port)
        if claim is not None:
            claims[port] = claim
        if claim is None or not _is_free(host, port):
            _give_up(claims)
            return {}
    return claims


def _claim(port: int) -> int | None:
    """Take a port among the processes of this machine: the descriptor of a socket whose name says so, None if taken."""
    if any(port in claims for claims in _given):
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            claim.bind(f"\0cometmq-port-{port}")  # an abstract name, which ends with its process
        except OSError:
            claim.close()
            return None
    return claim.detach()


def _give_up(claims: dict[int, int]) -> None:
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
