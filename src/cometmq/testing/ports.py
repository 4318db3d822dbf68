"""Free ports for servers of a test."""

from __future__ import annotations

import random
import socket
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

_given: deque[int] = deque(maxlen=100)
"""Ports returned lately, whose servers may not listen yet."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free, as are those that a broker uses beside it.

    :raises OSError: there is none.
    """
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST, _LAST)
        wanted = [port + step for step in _BESIDE]
        if not any(near in _given for near in wanted) and all(_is_free(host, near) for near in wanted):
            _given.extend(wanted)
            return port
    raise OSError(f"no three free ports next to each other between {_FIRST} and {_LAST}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
