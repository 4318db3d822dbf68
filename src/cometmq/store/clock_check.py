"""ClockCheck: warns if the system clock is behind the newest store timestamp.

Store timestamps never decrease. If the clock was ever ahead, the log contains timestamps in the future, and new
messages get the newest of these timestamps until the clock has passed it.
"""

from __future__ import annotations

import logging

from cometmq.clock import Clock
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.quantity import duration_text
from cometmq.store.log.commit_log import CommitLog

_log = logging.getLogger(__name__)


class ClockCheck:
    """Logs one line when the clock falls behind the newest store timestamp, and one when it has caught up."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told = False

    @property
    def behind_ms(self) -> int:
        """Return by how many milliseconds the clock is behind the newest store timestamp, or 0 if it is not behind."""
        return max(self._log.last_timestamp - self._clock.now_ms(), 0)

    def run(self) -> None:
        """Compare the clock with the newest store timestamp, and log if it has fallen behind or caught up."""
        behind = self.behind_ms
        is_behind = behind > CLOCK_BEHIND_MS
        if is_behind and not self._told:
            _log.warning(
                "the clock is %s behind the newest message of the store: it is wrong, or was wrong when that message "
                "was stored; new messages get the timestamp of that message until the clock has passed it",
                duration_text(behind / 1000),
            )
        elif self._told and not is_behind:
            _log.info("the clock is no longer behind the newest message of the store")
        self._told = is_behind
