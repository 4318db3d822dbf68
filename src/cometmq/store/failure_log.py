"""Logs failures of work that is tried again and again, with two lines however often it fails."""

from __future__ import annotations

import logging

from cometmq.errors import CometMQError


class FailureLog:
    """Logs a failure when it begins and when it has ended, not at each attempt: on a full disk, the log may take the
    space that is missing.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failing: set[str] = set()

    def failed(self, work: str, error: Exception | str | None) -> None:
        """Log that work has failed and will be tried again, unless it failed the last time, too.

        :param work: the rest of a sentence that begins with "cannot".
        :param error: logged with its traceback if it is an exception that nobody expects.
        """
        if work not in self._failing:
            self._failing.add(work)
            trace = error if isinstance(error, Exception) and not isinstance(error, OSError | CometMQError) else None
            self._log.error("cannot %s: %s; will retry", work, error, exc_info=trace)

    def ended(self, *works: str) -> None:
        """Log that work has succeeded, if it failed the last time."""
        for work in works:
            if work in self._failing:
                self._failing.remove(work)
                self._log.info("can %s again", work)
