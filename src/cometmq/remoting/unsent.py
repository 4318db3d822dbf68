"""The answers that all clients of a server have not read; if they are too much, slow clients are not read either.

``WRITE_HIGH_WATER_BYTES`` limits those of one connection, but thousands of clients that do not read would fill the
memory. A client that reads its answers is served as usual.
"""

from __future__ import annotations

import logging
from typing import Protocol

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_UNSENT_BYTES, UNSENT_LOOK_SECONDS

log = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection, as far as its client reads answers."""

    remote_address: str

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not read."""

    def hold_back(self) -> None:
        """Stop reading requests of the client."""

    def go_on(self) -> None:
        """Read requests of the client again."""

    def abort(self) -> None:
        """End the connection at once."""


class UnsentAnswers:
    """The bytes in the buffers of all connections, as last measured."""

    def __init__(self, *, clock: Clock) -> None:
        self.total_bytes = 0
        self._clock = clock
        self._behind: dict[Reader, int] = {}
        self._held_back: set[Reader] = set()
        self._next_look: TimerHandle | None = None

    def count(self, connection: Reader, size: int) -> None:
        """Set the bytes in the buffer of a connection."""
        self.total_bytes += size - self._behind.pop(connection, 0)
        if size:
            self._behind[connection] = size

    def lost(self, connection: Reader) -> None:
        """Forget a connection that has ended."""
        self.count(connection, 0)
        self._held_back.discard(connection)

    def end_round(self) -> None:
        """Check the total after all answers of a turn are written."""
        if self.total_bytes <= MAX_UNSENT_BYTES:
            return
        self._measure()  # who was behind may have read meanwhile
        while self.total_bytes > 2 * MAX_UNSENT_BYTES:
            self._cut_off_largest()
        if self.total_bytes <= MAX_UNSENT_BYTES:
            return
        if not self._held_back:
            log.warning(
                "%d clients have not read %d bytes of answers: they are not read until they have",
                len(self._behind),
                self.total_bytes,
            )
        for connection in self._behind.keys() - self._held_back:
            self._held_back.add(connection)
            connection.hold_back()
        self._look_soon()

    def stop(self) -> None:
        """Stop checking."""
        if self._next_look is not None:
            self._next_look.cancel()

    def _measure(self) -> None:
        for connection in list(self._behind):
            self.count(connection, connection.unsent_bytes)

    def _cut_off_largest(self) -> None:
        largest = max(self._behind, key=self._behind.__getitem__)
        log.warning(
            "closing %s: it has not read %d bytes of answers, the most of %d",
            largest.remote_address,
            self._behind[largest],
            self.total_bytes,
        )
        self.lost(largest)
        largest.abort()

    def _look_soon(self) -> None:
        if self._next_look is None:
            self._next_look = self._clock.call_later(UNSENT_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Read clients again that have read their answers, or all of them when there is room."""
        self._next_look = None
        self._measure()
        is_room = self.total_bytes <= MAX_UNSENT_BYTES // 2
        for connection in [one for one in self._held_back if is_room or one not in self._behind]:
            self._held_back.discard(connection)
            connection.go_on()
        if self._held_back:
            self._look_soon()
