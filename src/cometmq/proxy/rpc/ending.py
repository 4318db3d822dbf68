"""The end of a gRPC server's connections when the server stops.

Theory of operation. A call that gets no answer fails in the application, since gRPC repeats only calls that a server
certainly has not handled. So every call is answered. First GOAWAY announces the end: a client sends its next calls over
another connection, if need be to another address. Calls that were on their way are still handled. When the client has
answered the PING behind it, no more can arrive, and GOAWAY with the last call follows. A connection is closed when all
its calls are answered.

Calls that wait for something to happen are ended at once: receives without messages, and Telemetry streams. A client
that answers no PING, and calls that take too long, are not waited for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from cometmq.remoting.connections.pause import SocketPause

_PAUSES: Final = 300
"""Pauses in which calls under way can be answered: three seconds, after which clients send elsewhere."""
_PAUSES_OF_SILENT: Final = 50
"""Pauses after which a client need not have answered the PING."""


class Ending(Protocol):
    """A connection that removes itself from its server's collection when it has ended."""

    def announce_end(self) -> None:
        """Tell the client to make no more calls on this connection."""

    def stop_waiting(self) -> None:
        """End the calls that wait for something to happen."""

    def refuse_calls(self) -> None:
        """Accept no more calls, even if the client has not confirmed that it makes none."""

    @property
    def is_over(self) -> bool:
        """True if no more calls can arrive and all calls are answered, except those of this round."""

    def close(self) -> None:
        """Close the connection after all queued data has been written."""


async def end_all(connections: Collection[Ending]) -> None:
    """Close every connection when its calls are answered; leave those for which this takes too long."""
    for connection in list(connections):
        connection.announce_end()
    for number in range(_PAUSES):
        for connection in list(connections):
            connection.stop_waiting()
            if number == _PAUSES_OF_SILENT:
                connection.refuse_calls()
        over = [connection for connection in connections if connection.is_over]
        await SocketPause.wait()
        for connection in over:
            connection.close()
        if not connections:
            return
