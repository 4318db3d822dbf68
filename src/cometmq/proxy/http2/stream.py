"""One HTTP/2 stream: its states (RFC 9113, 5.1), and the frames that wait for the client's windows."""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, Protocol

from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode

FRAME_BYTES: Final = 16_384
"""Maximum frame payload in both directions, which is HTTP/2's default."""


class StreamState(enum.IntEnum):
    """The states of a stream; "local" refers to the server."""

    OPEN = 0
    HALF_CLOSED_REMOTE = 1
    """The request is complete."""
    HALF_CLOSED_LOCAL = 2
    """The response is complete, but may still be waiting for the client's window."""
    CLOSING = 3
    """Request and response are complete, and the response waits for the client's window."""
    CLOSED = 4


class StreamEvent(enum.IntEnum):
    """Events that change a stream's state."""

    REMOTE_END = 0
    """The client has sent a frame with END_STREAM."""
    LOCAL_END = 1
    """The server has queued the end of its response."""
    CLOSE = 2
    """The complete response was sent, one side reset the stream, or the connection was lost."""


TRANSITIONS: Final = {
    (StreamState.OPEN, StreamEvent.REMOTE_END): StreamState.HALF_CLOSED_REMOTE,
    (StreamState.OPEN, StreamEvent.LOCAL_END): StreamState.HALF_CLOSED_LOCAL,
    (StreamState.OPEN, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.HALF_CLOSED_REMOTE, StreamEvent.LOCAL_END): StreamState.CLOSING,
    (StreamState.HALF_CLOSED_REMOTE, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.HALF_CLOSED_LOCAL, StreamEvent.REMOTE_END): StreamState.CLOSING,
    (StreamState.HALF_CLOSED_LOCAL, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.CLOSING, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.CLOSE): StreamState.CLOSED,
}
"""The next state by current state and event; other events are not allowed."""

_RECEIVING: Final = frozenset(state for state, event in TRANSITIONS if event is StreamEvent.REMOTE_END)
"""States in which the client may send frames."""
_SENDING: Final = frozenset(state for state, event in TRANSITIONS if event is StreamEvent.LOCAL_END)
"""States in which the server may queue frames."""


class Inbound(Protocol):
    """The receiver of one stream's request."""

    def receive_data(self, chunk: bytes) -> None:
        """Handle the next bytes of the request."""

    def receive_end(self) -> None:
        """Handle the end of the request."""

    def cancel(self) -> None:
        """Abandon the request, because the client reset the stream or the connection was lost."""


class StreamOwner(Protocol):
    """The connection methods that streams use."""

    window: int
    """Number of bytes that the client accepts on all streams together."""
    blocked: dict[Stream, None]

    def queue(self, data: bytes) -> None:
        """Queue bytes for sending."""

    def queue_data(self, number: int, data: bytes | memoryview, *, is_whole: bool) -> None:
        """Queue a data frame; ``is_whole`` marks the last frame of a message."""

    def queue_answer(self, data: bytes) -> None:
        """Queue all frames of a response, of which one is the only data frame."""

    def count_unsent(self, change: int) -> None:
        """Adjust the number of bytes that wait for the client's windows."""

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream."""


class Stream:
    """One stream, through which the layer above sends a response."""

    __slots__ = ("_connection", "_state", "_unsent", "id", "inbound", "unread", "unsent_bytes", "window")

    def __init__(self, connection: StreamOwner, number: int, window: int) -> None:
        self._connection = connection
        self._state = StreamState.OPEN
        self.id: Final = number
        self.window = window
        """Number of bytes that the client accepts on this stream."""
        self.inbound: Inbound | None = None
        self.unread = 0
        """Number of bytes received since the server's window was last enlarged."""
        self._unsent: deque[tuple[int, bytes | memoryview]] | None = None
        """Type and payload of each frame that waits for the window.

        Trailing headers end the stream.
        """
        self.unsent_bytes = 0
        """Number of bytes that wait for the client's window."""

    @property
    def may_receive(self) -> bool:
        """True while the client may send frames, because its request is not complete."""
        return self._state in _RECEIVING

    def handle(self, event: StreamEvent) -> None:
        """Enter the state that follows after an event."""
        self._state = TRANSITIONS[self._state, event]

    # --- sending --------------------------------------------------------------------------------
    def send_headers(self, block: bytes) -> None:
        """Send the response headers."""
        if self._state in _SENDING:
            self._connection.queue(frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, block))

    def send_data(self, data: bytes) -> None:
        """Send data, or store it until the client's window has room."""
        if self._state not in _SENDING:
            return
        connection = self._connection
        length = len(data)
        if not self._unsent and length <= min(self.window, connection.window, FRAME_BYTES):
            self.window -= length
            connection.window -= length
            connection.queue_data(self.id, data, is_whole=True)
            return
        if self._unsent is None:
            self._unsent = deque()
        self._unsent.append((frames.DATA, data))
        self._count_unsent(length)
        self.pump()

    def answer(self, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send a complete response; if the client's windows have room, its frames are queued together."""
        connection = self._connection
        length = len(data)
        if (
            self._state is not StreamState.HALF_CLOSED_REMOTE
            or self._unsent
            or length > min(self.window, connection.window, FRAME_BYTES)
        ):
            self.send_headers(headers)
            self.send_data(data)
            self.end(trailers)
            return
        connection.window -= length
        connection.queue_answer(
            frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, headers)
            + frames.frame(frames.DATA, 0, self.id, data)
            + frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.id, trailers)
        )
        self.handle(StreamEvent.LOCAL_END)
        connection.close_stream(self)

    def end(self, trailers: bytes) -> None:
        """End the response after the waiting data has been sent."""
        if self._state not in _SENDING:
            return
        self.handle(StreamEvent.LOCAL_END)
        if self._unsent:
            self._unsent.append((frames.HEADERS, trailers))
        else:
            self._send_trailers(trailers)

    def pump(self) -> None:
        """Send as much waiting data as the windows allow."""
        connection = self._connection
        unsent = self._unsent
        while unsent:
            kind, payload = unsent[0]
            if kind == frames.HEADERS:
                unsent.popleft()
                self._send_trailers(payload)
                return
            size = max(min(len(payload), self.window, connection.window, FRAME_BYTES), 0)
            if not size and payload:
                if connection.window <= 0:
                    connection.blocked[self] = None
                return
            connection.queue_data(self.id, payload[:size], is_whole=size == len(payload))
            self.window -= size
            connection.window -= size
            self._count_unsent(-size)
            if size == len(payload):
                unsent.popleft()
            else:
                unsent[0] = (kind, memoryview(payload)[size:])

    def _send_trailers(self, trailers: bytes | memoryview) -> None:
        connection = self._connection
        connection.queue(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.id, trailers))
        if self.may_receive:
            connection.queue(frames.reset(self.id, ErrorCode.NO_ERROR))
        connection.close_stream(self)

    def drop_unsent(self) -> None:
        """Discard the waiting data."""
        if self._unsent:
            self._unsent.clear()
            self._count_unsent(-self.unsent_bytes)

    def _count_unsent(self, change: int) -> None:
        self.unsent_bytes += change
        self._connection.count_unsent(change)
