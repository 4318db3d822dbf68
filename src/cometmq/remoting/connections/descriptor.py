"""The descriptor of a connection's socket, by which the compiled core writes to it."""

from __future__ import annotations

import asyncio
from typing import Final

NO_DESCRIPTOR: Final = -1
"""Instead of the descriptor of a socket."""


def descriptor_of(transport: asyncio.Transport) -> int:
    """Return the descriptor of a transport's socket, or -1 if bytes must pass through the transport, as with TLS."""
    sock = transport.get_extra_info("socket")
    return NO_DESCRIPTOR if sock is None or transport.get_extra_info("ssl_object") is not None else int(sock.fileno())
