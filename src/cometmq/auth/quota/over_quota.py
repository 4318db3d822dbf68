"""OverQuotaError, raised when a request exceeds a quota."""

from __future__ import annotations

import math
from typing import Final

from cometmq.auth.quota.meter import Meter

_WORDS: Final = {
    "messagesIn": "sent messages per second",
    "bytesIn": "sent bytes per second",
    "messagesOut": "received messages per second",
    "bytesOut": "received bytes per second",
    "connections": "connections",
    "topics": "topics",
}


class OverQuotaError(Exception):
    """A request exceeds a quota. The client can retry it after ``wait_s`` seconds."""

    def __init__(self, meter: Meter, limit: str, wait_s: float) -> None:
        self.meter = meter
        self.limit = limit
        self.wait_s = wait_s

    @property
    def remark(self) -> str:
        """Return the error message, including the time to wait."""
        most = self.meter.limits.given().get(self.limit, 0)
        if self.limit == "topics":
            way_out = "delete a topic that is not needed"
        elif self.limit == "connections":
            way_out = "close a connection, or wait until one is closed"
        elif math.isinf(self.wait_s):
            way_out = "it allows none"
        else:
            way_out = f"wait {math.ceil(self.wait_s * 1000):,} ms"
        return f"[QUOTA]{self.meter.subject} is at its limit of {most:,} {_WORDS[self.limit]}: {way_out}"
