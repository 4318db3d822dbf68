"""A follower's view of its master: whether it is connected, silent or dead, and whether its bytes may be copied."""

from __future__ import annotations


class MasterLink:
    """The connection to the master of one epoch at a time.

    :param silent_s: time without a heartbeat after which the master seems to be gone.
    """

    def __init__(self, silent_s: float, now: float) -> None:
        self._silent_s = silent_s
        self.is_copying = False
        """True once the log was cut to what it has in common with the master's."""
        self.is_connected = False
        """True if the master has accepted a connection in this epoch."""
        self.is_refused = False
        """True if the master's port has refused after the connection was reset: its process is dead."""
        self.heard_at = now

    def begin(self, now: float) -> None:
        """Expect another master, which gets time to be heard."""
        self.is_copying = self.is_connected = self.is_refused = False
        self.heard_at = now

    def accepted(self, now: float) -> None:
        """The master has accepted the connection, and the log is cut."""
        self.is_copying = self.is_connected = True
        self.is_refused = False
        self.heard_at = now

    def lost(self, *, is_refused: bool) -> None:
        """The connection is lost."""
        self.is_copying = False
        self.is_refused = is_refused

    def is_silent(self, now: float) -> bool:
        """Return whether the master has not been heard for too long."""
        return now - self.heard_at >= self._silent_s
