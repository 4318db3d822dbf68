"""ClockCheck: compares the clock with the newest store time, which never goes back.

A clock that once was ahead leaves its time in the log. New messages get that time until the clock has passed it.
"""

from __future__ import annotations

import logging

from cometmq.clock import Clock
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.quantity import duration_text
from cometmq.store.log.commit_log import CommitLog

_log = logging.getLogger(__name__)


class ClockCheck:
    """Logs once when the clock is behind the newest store time, and once when it has caught up."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told = False

    @property
    def behind_ms(self) -> int:
        """The distance of the clock behind the newest store time, or 0 if it is not after."""
        return max(self._log.last_timestamp - self._clock.now_ms(), 0)

    def run(self) -> None:
        """Compare the clock with the newest store time."""
        behind = self.behind_ms
        is_behind = behind > CLOCK_BEHIND_MS
        if is_behind and not self._told:
            _log.warning(
                "the clock is %s behind the newest message of the store: it is wrong, or was wrong when that was "
                "stored; new messages carry the time of that message until the clock has passed it",
                duration_text(behind / 1000),
            )
        elif self._told and not is_behind:
            _log.info("the clock is no longer behind the newest message of the store")
        self._told = is_behind
