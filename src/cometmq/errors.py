"""The root of CometMQ's error tree."""

from __future__ import annotations

import os


def reason_of(error: OSError) -> str:
    """Return the operating system's words for a failure, without its numbers: ``connection refused``."""
    if error.errno is None or error.errno < 0:  # below 0: a name that was not resolved, whose words are in the error
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


class CometMQError(Exception):
    """Any failure that CometMQ reports on purpose.

    ``message`` says what went wrong in one sentence; ``next_step``, where there is one, says what
    the person who reads it can do now.
    """

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        """Both, for a log or a person."""
        return self.message if self.next_step is None else f"{self.message} ({self.next_step})"
