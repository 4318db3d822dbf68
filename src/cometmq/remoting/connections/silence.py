"""Ends the connections of clients that send nothing for a long time, or never complete a frame."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cometmq.clock import Clock
from cometmq.remoting.connections.gradual import Gradual

if TYPE_CHECKING:
    from cometmq.remoting.server_connection import ServerConnection

SWEEP_SECONDS: Final = 5.0
"""Seconds between two sweeps, which count the silence of each connection."""

_log = logging.getLogger(__name__)


class Silence:
    """Counts the sweeps in which connections were silent, and ends them gradually.

    :param idle_timeout_s: number of seconds without new bytes after which a connection is closed.
    :param frame_timeout_s: number of seconds within which a frame must arrive completely.
    """

    def __init__(self, idle_timeout_s: float, frame_timeout_s: float, *, clock: Clock) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._frame_timeout_s = frame_timeout_s
        self._endings: Final = Gradual(self._end, clock=clock)

    def sweep(self, connections: Iterable[ServerConnection]) -> None:
        """Count one more sweep for each connection; those that were silent for too long are ended soon."""
        for connection in connections:
            connection.quiet_sweeps += 1
            if connection.frame_sweeps >= 0:
                connection.frame_sweeps += 1
            if self._is_idle(connection) or self._is_stuck(connection):
                self._endings.add(connection)

    def _is_idle(self, connection: ServerConnection) -> bool:
        return (connection.quiet_sweeps - 1) * SWEEP_SECONDS >= self._idle_timeout_s

    def _is_stuck(self, connection: ServerConnection) -> bool:
        return (connection.frame_sweeps - 1) * SWEEP_SECONDS >= self._frame_timeout_s

    def _end(self, connection: ServerConnection) -> None:
        if connection.closed:
            return
        if self._is_idle(connection):
            if connection.is_closing:  # this client does not read its responses
                connection.abort()
                return
            _log.info("closing %s: idle for %g s", connection.remote_address, self._idle_timeout_s)
            connection.close()
        elif self._is_stuck(connection):
            address, seconds = connection.remote_address, self._frame_timeout_s
            _log.warning("closing %s: a frame was incomplete for over %g s", address, seconds)
            connection.abort()
