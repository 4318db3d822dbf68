"""One stream of an HTTP/2 connection: what is sent on it, within the client's windows (RFC 9113, 5.2)."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode

FRAME_BYTES: Final = 16_384
"""Largest payload of a frame, in both directions: HTTP/2's default."""


class Inbound(Protocol):
    """The receiver of one stream."""

    def data(self, chunk: bytes) -> None:
        """Take some bytes."""

    def ended(self) -> None:
        """The client sends nothing more."""

    def cancelled(self) -> None:
        """The stream is gone: the client has reset it, or the connection is lost."""


class StreamOwner(Protocol):
    """The connection, as its streams see it."""

    window: int
    """Bytes of data that the client still takes on all streams together."""
    blocked: dict[Stream, None]

    def put(self, data: bytes) -> None:
        """Queue bytes."""

    def put_data(self, number: int, data: bytes | memoryview, *, is_whole: bool) -> None:
        """Queue a frame of data, the last one of its message or not."""

    def waits(self, change: int) -> None:
        """Note that more, or fewer, bytes wait for the client's windows."""

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream."""


class Stream:
    """One stream; the layer above writes to it."""

    __slots__ = (
        "_connection",
        "_is_ended_here",
        "_waiting",
        "id",
        "inbound",
        "is_ended_there",
        "unread",
        "waiting_bytes",
        "window",
    )

    def __init__(self, connection: StreamOwner, number: int, window: int) -> None:
        self._connection = connection
        self.id: Final = number
        self.window = window
        """Bytes of data that the client still takes."""
        self.inbound: Inbound | None = None
        self.is_ended_there = False
        self._is_ended_here = False
        self.unread = 0
        """Bytes that came since our window was enlarged."""
        self._waiting: deque[tuple[int, bytes | memoryview]] | None = None
        """Frames that wait for the window: type and payload; the last headers end the stream. Few streams have any."""
        self.waiting_bytes = 0
        """Bytes of data that wait for the client's window."""

    def send_headers(self, block: bytes) -> None:
        """Send the headers of the answer."""
        if not self._is_ended_here:
            self._connection.put(frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, block))

    def send_data(self, data: bytes) -> None:
        """Send data, or keep it until the client's window has room."""
        if self._is_ended_here:
            return
        connection = self._connection
        length = len(data)
        if not self._waiting and length <= min(self.window, connection.window, FRAME_BYTES):
            self.window -= length
            connection.window -= length
            connection.put_data(self.id, data, is_whole=True)
            return
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((frames.DATA, data))
        self._waits(length)
        self.pump()

    def end(self, trailers: bytes) -> None:
        """End the answer after everything that waits."""
        if self._is_ended_here:
            return
        self._is_ended_here = True
        if self._waiting:
            self._waiting.append((frames.HEADERS, trailers))
        else:
            self._finish(trailers)

    def reset(self, code: ErrorCode) -> None:
        """End the stream at once, in both directions."""
        self._is_ended_here = True
        self._connection.put(frames.reset(self.id, code))
        self._connection.close_stream(self)

    def pump(self) -> None:
        """Send what the windows have room for."""
        connection = self._connection
        waiting = self._waiting
        while waiting:
            kind, payload = waiting[0]
            if kind == frames.HEADERS:
                waiting.popleft()
                self._finish(payload)
                return
            size = min(len(payload), self.window, connection.window, FRAME_BYTES)
            if size <= 0 and payload:
                if connection.window <= 0:
                    connection.blocked[self] = None
                return
            connection.put_data(self.id, payload[:size], is_whole=size == len(payload))
            self.window -= size
            connection.window -= size
            self._waits(-size)
            if size == len(payload):
                waiting.popleft()
            else:
                waiting[0] = (kind, memoryview(payload)[size:])

    def drop(self) -> None:
        """Forget what waits."""
        if self._waiting:
            self._waiting.clear()
            self._waits(-self.waiting_bytes)

    def _waits(self, change: int) -> None:
        self.waiting_bytes += change
        self._connection.waits(change)

    def _finish(self, trailers: bytes | memoryview) -> None:
        connection = self._connection
        connection.put(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.id, trailers))
        if not self.is_ended_there:
            connection.put(frames.reset(self.id, ErrorCode.NO_ERROR))
        connection.close_stream(self)
