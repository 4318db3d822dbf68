"""OverQuotaError: a request exceeds a quota."""

from __future__ import annotations

import math
from typing import Final

from cometmq.auth.quota.meter import Meter

_WORDS: Final = {
    "messagesIn": "messages a second to send",
    "bytesIn": "bytes a second to send",
    "messagesOut": "messages a second to get",
    "bytesOut": "bytes a second to get",
    "connections": "connections",
    "topics": "topics",
}


class OverQuotaError(Exception):
    """A request exceeds a quota; the client can repeat it after ``wait_s`` seconds."""

    def __init__(self, meter: Meter, limit: str, wait_s: float) -> None:
        self.meter = meter
        self.limit = limit
        self.wait_s = wait_s

    @property
    def remark(self) -> str:
        """Return the message, including the time to wait."""
        most = self.meter.limits.given().get(self.limit, 0)
        if self.limit == "topics":
            way_out = "delete one that is not needed"
        elif self.limit == "connections":
            way_out = "close one, or wait until another is closed"
        elif math.isinf(self.wait_s):
            way_out = "it allows none"
        else:
            way_out = f"wait {math.ceil(self.wait_s * 1000):,} ms"
        return f"[QUOTA]{self.meter.subject} is at its limit of {most:,} {_WORDS[self.limit]}: {way_out}"
