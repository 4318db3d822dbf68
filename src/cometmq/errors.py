"""The root of CometMQ's error tree."""

from __future__ import annotations

import os


def reason_of(error: OSError) -> str:
    """Return the operating system's text for a failure, without numbers: ``connection refused``."""
    if error.errno is None or error.errno < 0:  # below 0: name resolution failed, and the text is in the error
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


class CometMQError(Exception):
    """The base of all errors that CometMQ raises on purpose.

    ``message`` is one sentence on the failure; ``next_step``, if given, tells the reader what to do now.
    """

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        """Return message and next step."""
        if self.next_step is None or self.next_step in self.message:  # a server may have told it already
            return self.message
        return f"{self.message} ({self.next_step})"
