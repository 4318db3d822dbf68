"""Rate limits for logins: from one address, for one name, and in total."""

from __future__ import annotations

from typing import Final

from cometmq.clock import Clock
from cometmq.console.limits import ALL_LOGINS_PER_MINUTE, LOGINS_PER_MINUTE

_MINUTE: Final = 60.0
_KNOWN_MAX: Final = 10_000
"""Maximum number of addresses and names to count. The oldest are dropped."""


class LoginRate:
    """Counts login attempts in windows of one minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}

    def wait_seconds(self, address: str, name: str) -> int:
        """Count an attempt. Return the number of seconds until it is allowed, or 0 if it is allowed now.

        An attempt that must wait is not counted, so a flood of attempts does not lock anybody out for more than a
        minute.
        """
        limits = {
            "": ALL_LOGINS_PER_MINUTE,
            f"address {address}": LOGINS_PER_MINUTE,
            f"name {name[:200]} {address}": LOGINS_PER_MINUTE,
        }
        now = self._clock.monotonic()
        for key, limit in limits.items():
            began, count = self._windows.get(key, (now, 0))
            if now - began < _MINUTE and count >= limit:
                return int(began + _MINUTE - now) + 1
        for key in limits:
            began, count = self._windows.pop(key, (now, 0))
            if now - began >= _MINUTE:
                began, count = now, 0
            self._windows[key] = (began, count + 1)
        while len(self._windows) > _KNOWN_MAX:
            self._windows.pop(next(key for key in self._windows if key))
        return 0
