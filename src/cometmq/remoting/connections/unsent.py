"""Limits a server's unread responses: if they use too much memory, the server stops reading from slow clients.

``WRITE_HIGH_WATER_BYTES`` limits the unread answers of one connection, but thousands of clients that do not read their
answers could still fill the memory. Clients that read their answers are served as usual.
"""

from __future__ import annotations

import logging
from typing import Protocol

from cometmq.clock import Clock
from cometmq.limits import MAX_UNSENT_BYTES, UNSENT_CHECK_SECONDS
from cometmq.periodic import Alarm

log = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection that can be paused while its client does not read its responses."""

    remote_address: str

    @property
    def unsent_bytes(self) -> int:
        """Return the number of response bytes that the client has not read."""

    def pause_requests(self) -> None:
        """Stop reading the client's requests."""

    def resume_requests(self) -> None:
        """Resume reading the client's requests."""

    def abort(self) -> None:
        """Abort the connection."""


class UnsentAnswers:
    """Tracks the bytes buffered for each connection, and pauses connections if the total is too large."""

    def __init__(self, *, clock: Clock) -> None:
        self.total_bytes = 0
        self._behind: dict[Reader, int] = {}
        self._held_back: set[Reader] = set()
        self._next_check = Alarm(self._check, clock=clock)

    def count(self, connection: Reader, size: int) -> None:
        """Record the number of bytes buffered for a connection."""
        self.total_bytes += size - self._behind.pop(connection, 0)
        if size:
            self._behind[connection] = size

    def lost(self, connection: Reader) -> None:
        """Remove a connection that has ended."""
        self.count(connection, 0)
        self._held_back.discard(connection)

    def end_round(self) -> None:
        """Check the total after all responses of the round have been written."""
        if self.total_bytes <= MAX_UNSENT_BYTES:
            return
        self._measure()  # slow clients may have caught up in the meantime
        while self.total_bytes > 2 * MAX_UNSENT_BYTES:
            self._abort_largest()
        if self.total_bytes <= MAX_UNSENT_BYTES:
            return
        if not self._held_back:
            log.warning(
                "%d clients have not read %d bytes of responses; their requests are held back until they do",
                len(self._behind),
                self.total_bytes,
            )
        for connection in self._behind.keys() - self._held_back:
            self._held_back.add(connection)
            connection.pause_requests()
        if not self._next_check.is_set:
            self._next_check.after(UNSENT_CHECK_SECONDS)

    def stop(self) -> None:
        """Stop checking the total."""
        self._next_check.cancel()

    def _measure(self) -> None:
        for connection in list(self._behind):
            self.count(connection, connection.unsent_bytes)

    def _abort_largest(self) -> None:
        largest = max(self._behind, key=self._behind.__getitem__)
        log.warning(
            "closing %s: it has not read %d bytes of responses, more than any other client (%d in total)",
            largest.remote_address,
            self._behind[largest],
            self.total_bytes,
        )
        self.lost(largest)
        largest.abort()

    def _check(self) -> None:
        """Resume reading from clients that have read their responses, or from all clients once enough memory is
        free.
        """
        self._measure()
        is_room = self.total_bytes <= MAX_UNSENT_BYTES // 2
        for connection in [one for one in self._held_back if is_room or one not in self._behind]:
            self._held_back.discard(connection)
            connection.resume_requests()
        if self._held_back:
            self._next_check.after(UNSENT_CHECK_SECONDS)
