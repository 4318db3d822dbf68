"""What the worker processes of the demo share: how they tell the stage of their progress."""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK

TELL_SECONDS: Final = 0.2


class Told(msgspec.Struct):
    """One line that a worker prints: how many messages it has handled, and how many attempts failed."""

    done: int = 0
    retries: int = 0
    act: str = ""
    """What it is doing, where it does one thing after the other."""
    archived: int = 0
    replayed: int = 0


class Teller:
    """Prints progress, but not too often."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def tell(self, told: Told, *, now: bool = False) -> None:
        """Print a line if it is time, or `now`."""
        moment = SYSTEM_CLOCK.monotonic()
        if now or moment >= self._next_at:
            self._next_at = moment + TELL_SECONDS
            sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
            sys.stdout.buffer.flush()
