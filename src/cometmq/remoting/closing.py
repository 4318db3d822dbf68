"""How a server that stops parts from its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.01


class Closing(Protocol):
    """A connection that leaves its server's collection when it has ended."""

    def close(self) -> None:
        """End when everything is written."""

    def abort(self) -> None:
        """End at once."""


async def close_all(connections: Collection[Closing]) -> None:
    """Close every connection; those whose sockets take longer than a second are cut off."""
    for connection in list(connections):
        connection.close()
    for _ in range(_ATTEMPTS):
        if not connections:
            return
        await asyncio.sleep(_PAUSE_S)
    for connection in list(connections):
        connection.abort()
