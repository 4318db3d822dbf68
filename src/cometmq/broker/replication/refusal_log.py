"""Logs which connections to the port for slaves are closed, with few lines however many there are."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.clock import Clock
from cometmq.periodic import Alarm

_log = logging.getLogger(__name__)

REFUSALS_SECONDS: Final = 10.0
"""Time after a line in which further connections are only counted."""


class RefusalLog:
    """Logs a closed connection at once, and those of the next seconds in one line with their number.

    Anyone who reaches the port can open connections that are refused, so their number must not fill the log.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._counted = 0
        self._last = ""
        self._summary = Alarm(self._summarize, clock=clock)

    def closed(self, address: str, why: object) -> None:
        """Log that the connection of a slave is closed, and why."""
        if self._summary.is_set:
            self._counted += 1
            self._last = f"{address}: {why}"
            return
        _log.error("closing the connection of slave %s: %s", address, why)
        self._summary.after(REFUSALS_SECONDS)

    def stop(self) -> None:
        """Log what is counted, and wait for nothing more."""
        self._summary.cancel()
        self._report()

    def _summarize(self) -> None:
        if self._report():
            self._summary.after(REFUSALS_SECONDS)

    def _report(self) -> bool:
        """Log the connections that are only counted; return whether there were any."""
        counted, self._counted = self._counted, 0
        if counted:
            seconds = REFUSALS_SECONDS
            _log.error("closed %d more connections of slaves in %g s; the last was %s", counted, seconds, self._last)
        return counted > 0
