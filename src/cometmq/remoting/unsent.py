"""What the clients of a server have not read yet, all together: those behind are not read while it is too much.

Of one connection that is bounded already (``WRITE_HIGH_WATER_BYTES``); thousands of clients that do not read would
fill the memory all the same. Who reads what it asked for is served as ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_UNSENT_BYTES, UNSENT_LOOK_SECONDS

if TYPE_CHECKING:
    from cometmq.remoting.server_connection import ServerConnection

log = logging.getLogger(__name__)


class UnsentAnswers:
    """The bytes that wait in the buffers of all connections, as far as they were looked at."""

    def __init__(self, *, clock: Clock) -> None:
        self.total_bytes = 0
        self._clock = clock
        self._behind: dict[ServerConnection, int] = {}
        self._held_back: set[ServerConnection] = set()
        self._next_look: TimerHandle | None = None

    def count(self, connection: ServerConnection, size: int) -> None:
        """So many bytes wait in the buffer of a connection now."""
        self.total_bytes += size - self._behind.pop(connection, 0)
        if size:
            self._behind[connection] = size

    def lost(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        self.count(connection, 0)
        self._held_back.discard(connection)

    def end_turn(self) -> None:
        """Everything of a turn is written: see whether it is too much."""
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
        """Look no more."""
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
        """Go on with those who have read what they had, or with all when there is room again."""
        self._next_look = None
        self._measure()
        is_room = self.total_bytes <= MAX_UNSENT_BYTES // 2
        for connection in [one for one in self._held_back if is_room or one not in self._behind]:
            self._held_back.discard(connection)
            connection.go_on()
        if self._held_back:
            self._look_soon()
