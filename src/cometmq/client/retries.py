"""Repeated sends: the failures after which a send is retried, and the pauses in between (``retryResponseCodes``).

============================  ============  ========================================  =========================
failure                       the message   a producer                                the blocking sender
============================  ============  ========================================  =========================
no connection, ``BUSY``       not stored    tries again until the time is up          the same
``NOT_STORED`` in the answer  not stored    the same                                  the same
``NOT_NOW``                   unknown       as ``retry_response_codes`` says          until the time is up
``LESS_SAFE``                 stored        tries again only if it is configured to   until the time is up
no answer                     unknown       tries again as often as configured        until the time is up
``RETRY_RESPONSE_CODES``      unknown       the same, unless an account is denied     fails, except ``NOT_NOW``
another code                  refused       fails                                     fails
============================  ============  ========================================  =========================

A producer switches to another broker if it can. The blocking sender keeps using the same queue, to preserve its order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.remoting.codes import ResponseCode

_MAX_DOUBLINGS: Final = 16

BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
BUSY_CODES: Final = frozenset({BUSY, int(ResponseCode.FLOW_CONTROL)})
"""The codes of a broker that is the right one, but has too much to do."""
NOT_NOW: Final = BUSY_CODES | {ResponseCode.SERVICE_NOT_AVAILABLE}
LESS_SAFE: Final = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
)
RETRY_RESPONSE_CODES: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Error codes after which another broker is tried, as in Java."""


class Pauses(NamedTuple):
    """Pauses between attempts, each twice as long as the last, up to a limit."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Return the number of seconds before the next attempt, for a given number of failures."""
        return min(self.first_s * float(1 << min(failures - 1, _MAX_DOUBLINGS)), self.longest_s)


def is_not_now(error: Exception) -> bool:
    """Return whether a broker answered that it accepts nothing now: it is stopping, or has too much to do.

    A master that has lost its set may have stored the message (``docs/failover.md``), so a repeated one may be a copy.
    """
    return getattr(error, "code", None) in NOT_NOW
