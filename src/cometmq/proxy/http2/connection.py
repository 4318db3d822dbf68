"""One HTTP/2 connection of a client, without its socket (RFC 9113).

Theory of operation. Bytes go in by :meth:`Http2Connection.receive`; headers, data and ends of streams go to an
:class:`Inbound` for each stream; what is to be sent collects in ``out``. A stream is open until both sides have ended
it, or one has reset it. The client's window bounds what is sent: what exceeds it waits in its stream. Our own window is
enlarged as data arrives; the layer above bounds what it keeps.

Fault model: the client is hostile. A block of headers, the list in it, the number of streams, and the frames that make
work without asking for anything (pings, settings, resets, priorities, empty data) are bounded; a client that exceeds a
bound gets GOAWAY with ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode, Http2Error
from cometmq.proxy.http2.hpack import HpackDecoder, HpackError
from cometmq.proxy.http2.idle_frames import IdleFrames
from cometmq.proxy.http2.stream import FRAME_BYTES, Inbound, Stream
from cometmq.proxy.limits import (
    HTTP2_WINDOW_BYTES,
    MAX_HEADER_BLOCK_BYTES,
    MAX_HEADER_LIST_BYTES,
    MAX_STREAMS,
)

_DEFAULT_WINDOW: Final = 65_535
_MAX_WINDOW: Final = 2**31 - 1


class Http2Connection:
    """The state of one connection.

    :param opened: called with each new stream, its headers, and the size of their list; returns who takes the rest.
        A list above the limit is not complete.
    :param wrote: called when the first bytes are in ``out``.
    :param waits: called with each change of the bytes that wait for the client's windows.
    :param unfinished: called with each change of the bytes of headers that are not complete.
    """

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_stream",
        "_buffer",
        "_decoder",
        "_first_window",
        "_idle",
        "_last_stream",
        "_leaving",
        "_most",
        "_opened",
        "_unfinished",
        "_unread",
        "_wrote",
        "blocked",
        "has_preface",
        "out",
        "streams",
        "waits",
        "window",
    )

    def __init__(
        self,
        opened: Callable[[Stream, dict[str, str], int], Inbound],
        wrote: Callable[[], None],
        waits: Callable[[int], None],
        unfinished: Callable[[int], None],
        clock: Clock,
    ) -> None:
        self._opened = opened
        self._wrote = wrote
        self.waits: Final = waits
        self._unfinished = unfinished
        self._decoder = HpackDecoder(MAX_HEADER_LIST_BYTES)
        self._buffer = b""
        self.has_preface = False
        """The client has shown that it speaks HTTP/2."""
        self._first_window = _DEFAULT_WINDOW
        self._last_stream = 0
        self._leaving = False
        self._most = 0
        """Frames that are still handled now."""
        self._unread = 0
        self._block: bytearray | None = None
        self._block_flags = self._block_stream = 0
        self._idle = IdleFrames(clock)
        self.window = _DEFAULT_WINDOW
        self.streams: dict[int, Stream] = {}
        self.blocked: dict[Stream, None] = {}
        """Streams that wait for the window of the connection, the first first."""
        self.out: list[bytes] = []

    def begin(self) -> None:
        """Send our settings."""
        self.put(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    frames.INITIAL_WINDOW_SIZE: HTTP2_WINDOW_BYTES,
                    frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
                }
            )
            + frames.window_update(0, HTTP2_WINDOW_BYTES - _DEFAULT_WINDOW)
        )

    # --- sending --------------------------------------------------------------------------------
    def put(self, data: bytes) -> None:
        """Queue bytes."""
        if not self.out:
            self._wrote()
        self.out.append(data)

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self.put(frames.frame(frames.PING, 0, 0, b"cometmq\0"))

    def leave(self, code: ErrorCode = ErrorCode.NO_ERROR, words: str = "") -> None:
        """Take no new streams, and tell the client."""
        if not self._leaving:
            self._leaving = True
            self.put(frames.goaway(self._last_stream, code, words))

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream, and let it forget who takes its data: a circle of objects is work for the collector."""
        self.streams.pop(stream.id, None)
        self.blocked.pop(stream, None)
        stream.inbound = None
        stream.drop()

    def _cancel(self, stream: Stream) -> None:
        inbound = stream.inbound
        self.close_stream(stream)
        if inbound is not None:
            inbound.cancelled()

    def lost(self) -> None:
        """Tell all streams that the connection is gone."""
        self._free_block()
        for stream in list(self.streams.values()):
            self._cancel(stream)

    # --- receiving ------------------------------------------------------------------------------
    def push(self, data: bytes) -> None:
        """Add bytes of the client."""
        self._buffer = self._buffer + data if self._buffer else data

    @property
    def pending(self) -> int:
        """Bytes that are not handled."""
        return len(self._buffer)

    def handle(self, most: int) -> bool:
        """Handle so many whole frames at most; tell whether there may be more.

        :raises Http2Error: the connection must end.
        """
        buffer = self._buffer
        at = 0
        if not self.has_preface:
            if len(buffer) < len(frames.PREFACE):
                if not frames.PREFACE.startswith(buffer):
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2")
                return False
            if not buffer.startswith(frames.PREFACE):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2")
            self.has_preface = True
            at = len(frames.PREFACE)
        end = len(buffer)
        unpack = frames.HEAD.unpack_from
        self._most = most
        try:
            while self._most and end - at >= frames.HEAD_BYTES:
                high, low, kind, flags, number = unpack(buffer, at)
                length = high << 8 | low
                if length > FRAME_BYTES:
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
                begin = at + frames.HEAD_BYTES
                if end - begin < length:
                    return False
                at = begin + length
                self._most -= 1
                self._frame(kind, flags, number & 0x7FFFFFFF, buffer[begin:at])
        finally:
            self._buffer = buffer[at:] if at else buffer
        return not self._most

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a block of headers is not complete")
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.RST_STREAM:
            self._idle.spend()
            stream = self.streams.get(number)
            if number == 0 or len(payload) != 4 or number > self._last_stream:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a wrong RST_STREAM")
            if stream is not None:
                self._cancel(stream)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.PING:
            if number or len(payload) != 8:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a wrong PING")
            if not flags & frames.ACK:
                self._idle.spend()
                self.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "clients push nothing")
        else:  # PRIORITY, GOAWAY of a client, and frames of later versions mean nothing here
            self._idle.spend()

    def put_data(self, number: int, data: bytes | memoryview, *, is_whole: bool) -> None:
        """Send a frame of data.

        :param is_whole: nothing is left of the message.
        """
        if is_whole:
            self._idle.earn()
        self.put(frames.frame(frames.DATA, 0, number, data))

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        self._unread += length
        if self._unread > HTTP2_WINDOW_BYTES // 2:
            self.put(frames.window_update(0, self._unread))
            self._unread = 0
        stream = self.streams.get(number)
        if stream is None or stream.inbound is None:
            if number == 0 or number > self._last_stream:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "data of a stream that is not open")
            self._idle.spend()  # it was answered already, or reset
            return
        if stream.is_ended_there:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "data after the end")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        is_end = flags & frames.END_STREAM
        if payload:
            stream.unread += length
            if stream.unread > HTTP2_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window")
            if stream.unread > HTTP2_WINDOW_BYTES // 2 and not is_end:
                self.put(frames.window_update(number, stream.unread))
                stream.unread = 0
            stream.inbound.data(payload)
        elif not is_end:
            self._idle.spend()
        if is_end and number in self.streams:
            stream.is_ended_there = True
            stream.inbound.ended()

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.HAS_PRIORITY:
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._block_done(flags, number, payload)
        else:
            self._block, self._block_flags, self._block_stream = bytearray(payload), flags, number
            self._unfinished(len(payload))

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or number != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        if not payload:
            self._idle.spend()
        self._block += payload
        self._unfinished(len(payload))
        if len(self._block) > MAX_HEADER_BLOCK_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {MAX_HEADER_BLOCK_BYTES} bytes")
        if flags & frames.END_HEADERS:
            self._block_done(self._block_flags, number, self._free_block())

    def _free_block(self) -> bytes:
        block, self._block = bytes(self._block or b""), None
        self._unfinished(-len(block))
        return block

    def _block_done(self, flags: int, number: int, block: bytes) -> None:
        try:
            headers, size = self._decoder.decode(block)
        except HpackError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        stream = self.streams.get(number)
        if stream is not None:  # trailers of a request say nothing
            if not flags & frames.END_STREAM or stream.is_ended_there:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a stream")
            stream.is_ended_there = True
            if stream.inbound is not None:
                stream.inbound.ended()
            return
        if number <= self._last_stream:
            if number and number % 2:
                self._idle.spend()  # trailers of a stream that has ended here
                return
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a wrong number of a stream")
        if not number % 2:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a wrong number of a stream")
        if self._leaving:
            return
        self._last_stream = number
        if len(self.streams) >= MAX_STREAMS:
            self._idle.spend()
            self.put(frames.reset(number, ErrorCode.REFUSED_STREAM))
            return
        stream = self.streams[number] = Stream(self, number, self._first_window)
        stream.is_ended_there = bool(flags & frames.END_STREAM)
        inbound = self._opened(stream, headers, size)
        if number in self.streams:
            stream.inbound = inbound
            if stream.is_ended_there:
                inbound.ended()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % frames.SETTING.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "wrong SETTINGS")
        if flags & frames.ACK:
            return
        self._idle.spend()
        first = self._first_window
        for key, value in frames.SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > _MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
                first = value
        change, self._first_window = first - self._first_window, first
        if change:  # once for a frame, however often it says so; a thousand streams are work enough for now
            self._most = 0
            for stream in list(self.streams.values()):
                stream.window += change
                if stream.waiting_bytes:
                    stream.pump()
        self.put(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a wrong WINDOW_UPDATE")
        size = frames.NUMBER.unpack(payload)[0] & _MAX_WINDOW
        if not size:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window of 0 bytes more")
        if number == 0:
            self.window += size
            if self.window > _MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            self._go_on()
            return
        stream = self.streams.get(number)
        if stream is not None:
            stream.window += size
            if stream.window > _MAX_WINDOW:
                stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
            else:
                stream.pump()
        elif number > self._last_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window of a stream that is not open")

    def _go_on(self) -> None:
        while self.window > 0 and self.blocked:  # a stream is here again only when nothing is left of the window
            stream = next(iter(self.blocked))
            del self.blocked[stream]
            stream.pump()
