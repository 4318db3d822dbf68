"""Logs unresponsive brokers, with one line for an outage and one for its recovery."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.clock import Clock
from cometmq.errors import CometMQError

_log: Final = logging.getLogger(__name__)

GRACE_SECONDS: Final = 2.0
"""Seconds after a recovery in which failures still count as part of the outage."""


class BrokerOutages:
    """A client's view of broker outages: each starts with a failure and ends with any response."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def seen(self, broker_name: str, error: CometMQError, again_in_s: float) -> None:
        """Record that a broker did not respond or is not in any route; log a warning at the first failure."""
        now = self._clock.monotonic()
        if broker_name in self._began or now - self._ended.get(broker_name, -GRACE_SECONDS) < GRACE_SECONDS:
            _log.debug("cannot read from %s: %s", broker_name, error)
            return
        self._began[broker_name] = now
        _log.warning("cannot read from %s, retrying every %g s: %s", broker_name, again_in_s, error)

    def over(self, broker_name: str) -> None:
        """Record a response from a broker; log one line if it ends an outage."""
        began = self._began.pop(broker_name, None)
        if began is not None:
            now = self._ended[broker_name] = self._clock.monotonic()
            _log.info("%s responds again after %.0f s", broker_name, now - began)

    def level(self, broker_name: str) -> int:
        """Return the log level for a failed request to a broker: below warning during a known outage."""
        return logging.DEBUG if broker_name in self._began else logging.WARNING
