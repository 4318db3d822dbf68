"""The part of a server that its connections use (``ConnectionOwner``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cometmq.clock import Clock

if TYPE_CHECKING:
    from cometmq.remoting.connections.unsent import UnsentAnswers
    from cometmq.remoting.frame import Frame
    from cometmq.remoting.server import RequestPath
    from cometmq.remoting.server_connection import NewTaker, ServerConnection


class ConnectionOwner(Protocol):
    """The part of the server that connections use."""

    unfinished_bytes: int
    round_bytes: int
    clock: Clock
    new_taker: NewTaker | None
    listener: str
    expects_requests: bool

    @property
    def path(self) -> RequestPath:
        """The steps that a response passes through."""

    @property
    def round_is_over(self) -> bool:
        """Return whether the connections have used up the time or the bytes of the current round."""

    @property
    def round_is_scheduled(self) -> bool:
        """True from the first request in a round until the end of the round."""

    @property
    def unsent(self) -> UnsentAnswers:
        """The responses that clients have not read yet."""

    def opened(self, connection: ServerConnection) -> None:
        """Register a new connection."""

    def lost(self, connection: ServerConnection) -> None:
        """Remove a closed connection, and call the functions in its ``on_close`` soon."""

    def wrote(self, connection: ServerConnection) -> None:
        """Flush the connection at the end of the round."""

    def resume_soon(self, connection: ServerConnection, code: int) -> None:
        """Let the connection continue in a later round; ``code`` is that of its next request, or -1."""

    def schedule_round(self) -> None:
        """Start a round if none is open."""

    def handle(self, connection: ServerConnection, frame: Frame) -> float | None:
        """Handle one frame; return the time at which handling started, unless the request is light."""

    def abort_largest(self) -> None:
        """Abort the connection with the largest unfinished frame."""
