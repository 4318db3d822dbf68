"""Limits a sender to a steady rate in messages per second."""

from __future__ import annotations

from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock

CATCH_UP_SECONDS: Final = 0.1
"""Maximum delay in seconds that a sender catches up on, so that no second exceeds 1.1 times the rate."""
WINDOW_SECONDS: Final = 0.05
"""Messages for at most this many seconds are sent together, but at least one message."""


class Pace:
    """Computes the time that messages must wait to keep a rate.

    Messages are counted before they are sent. So the rate is not exceeded even if another ``Pace`` follows, for example
    in the next task.
    """

    def __init__(self, per_second: float | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._per_second = per_second
        self._clock = clock
        self._due = clock.monotonic()

    def window(self, most: int) -> int:
        """Return the number of messages to send together, up to ``most``."""
        return most if self._per_second is None else max(1, min(most, int(self._per_second * WINDOW_SECONDS)))

    def take(self, messages: int) -> float:
        """Count messages; return the number of seconds to wait before sending them."""
        if self._per_second is None:
            return 0.0
        now = self._clock.monotonic()
        self._due = max(self._due, now - CATCH_UP_SECONDS) + messages / self._per_second
        return max(0.0, self._due - now)
