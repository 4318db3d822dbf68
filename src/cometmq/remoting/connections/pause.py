"""Short pauses in real time: the system's sockets need them, whatever time a clock shows."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

PAUSES_PER_SECOND: Final = 100


class SocketPause:
    """A pause of 10 ms in which the system transmits, confirms or closes. Meanwhile, an event loop is not idle."""

    under_way: ClassVar[set[object]] = set()
    """The pauses that have begun, in all event loops of this process."""

    @classmethod
    async def wait(cls) -> None:
        """Wait for the pause."""
        pause = object()
        cls.under_way.add(pause)
        try:
            await asyncio.sleep(1 / PAUSES_PER_SECOND)
        finally:
            cls.under_way.discard(pause)
