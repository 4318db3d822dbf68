"""The pauses before a request that failed is repeated; the codes of brokers that may do later what they refuse now."""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.remoting.codes import ResponseCode

_MAX_DOUBLINGS: Final = 16

NOT_NOW: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SERVICE_NOT_AVAILABLE})
"""The broker did not store the message; it may do so later."""
LESS_SAFE: Final = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
)
"""The message is stored, but not as safely as the broker is set to store."""


class Pauses(NamedTuple):
    """Pauses between tries: each is twice the last one, up to a limit."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Seconds before the next try, after so many failures."""
        return min(self.first_s * float(1 << min(failures - 1, _MAX_DOUBLINGS)), self.longest_s)
