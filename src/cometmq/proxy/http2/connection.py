"""One HTTP/2 connection from a client, independent of its socket (RFC 9113).

Theory of operation. ``add_bytes`` stores the client's bytes, and ``handle_frames`` handles them: it passes headers,
data and the end of each request to the stream's :class:`Inbound`. Frames to send are collected in ``out``. The states
of a stream are defined by :data:`~cometmq.proxy.http2.stream.TRANSITIONS`. The client's windows limit the data sent;
the remaining data waits in its stream. The server's window grows as data arrives; the layer above limits the memory for
requests.

Fault model: the client is hostile. Header blocks, header lists, the number of streams, and control frames (pings,
settings, resets, priorities, empty data) are limited; a client that exceeds a limit gets GOAWAY with ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ControlFrameBudget, ErrorCode, Http2Error, answers_in
from cometmq.proxy.http2.hpack import Decoder, HpackError, new_decoder
from cometmq.proxy.http2.stream import FRAME_BYTES, Inbound, Stream, StreamEvent
from cometmq.proxy.limits import (
    HTTP2_WINDOW_BYTES,
    MAX_HEADER_BLOCK_BYTES,
    MAX_HEADER_LIST_BYTES,
    MAX_STREAMS,
)

_DEFAULT_WINDOW: Final = 65_535
_MAX_WINDOW: Final = 2**31 - 1
_LAST_PING: Final = b"lastping"
MAX_TAKEN_ANSWER_BYTES: Final = FRAME_BYTES
"""Maximum size of the data in a response of :attr:`Http2Connection.take_calls`.

The client's windows for streams must be at least that large when calls are taken. Updates of a single window are kept
for the response, because the client may lower the others before it.
"""

TakenCalls = tuple[int, int, int, int, bool]
"""The end of the calls that were taken, the last stream, the size of their data, their number, and whether the bytes
behind them are the beginning of a call that may be taken once the rest of it has arrived.
"""
CallTaker = Callable[[Decoder, bytes, int, int], TakenCalls | None]
"""A function that handles complete calls at a position in received bytes, given the number of the last stream.

It returns ``None`` if the connection must wait for the next round. It leaves the calls that it does not handle, and the
decoder, as they were.
"""


class Http2Connection:
    """The state of one HTTP/2 connection.

    :param open_stream: called with each new stream, its headers, and the size of the header list; returns the receiver
        of the request's data. A header list above the limit is truncated.
    :param on_output: called when the first bytes are in ``out``.
    :param count_unsent: called with each change in the number of bytes that wait for the client's windows.
    :param count_incomplete: called with each change in the number of bytes of incomplete headers.
    """

    __slots__ = (
        "_announced_goaway",
        "_block",
        "_block_flags",
        "_block_stream",
        "_buffer",
        "_control_frames",
        "_count_incomplete",
        "_decoder",
        "_first_window",
        "_frames_left",
        "_given",
        "_is_cut",
        "_is_lost",
        "_last_stream",
        "_on_output",
        "_open_stream",
        "_sent_goaway",
        "_unread",
        "blocked",
        "count_unsent",
        "has_preface",
        "must_wait",
        "out",
        "streams",
        "take_calls",
        "window",
    )

    def __init__(
        self,
        open_stream: Callable[[Stream, dict[str, str], int], Inbound],
        on_output: Callable[[], None],
        count_unsent: Callable[[int], None],
        count_incomplete: Callable[[int], None],
        clock: Clock,
    ) -> None:
        self._open_stream = open_stream
        self._on_output = on_output
        self.count_unsent: Final = count_unsent
        self._count_incomplete = count_incomplete
        self._decoder = new_decoder(MAX_HEADER_LIST_BYTES)
        self._buffer = b""
        self.has_preface = False
        """True once the client has sent the HTTP/2 preface."""
        self._first_window = _DEFAULT_WINDOW
        self._given: dict[int, int] = {}
        """Updates of the windows of streams that may be those of taken calls."""
        self._last_stream = 0
        self._announced_goaway = self._sent_goaway = False
        self._is_lost = self._is_cut = False
        self._frames_left = 0
        """Number of frames that the current call can still handle."""
        self.take_calls: CallTaker | None = None
        """Handles calls without a stream, if it may; its caller sends the responses."""
        self.must_wait = False
        """True if ``take_calls`` left its calls for the next round."""
        self._unread = 0
        self._block: bytearray | None = None
        self._block_flags = self._block_stream = 0
        self._control_frames = ControlFrameBudget(clock)
        self.window = _DEFAULT_WINDOW
        self.streams: dict[int, Stream] = {}
        self.blocked: dict[Stream, None] = {}
        """Streams that are waiting for the connection's window, in order."""
        self.out: list[bytes] = []

    def begin(self) -> None:
        """Send the server's settings."""
        self.queue(
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
    def queue(self, data: bytes) -> None:
        """Queue bytes for sending."""
        if not self.out:
            self._on_output()
        self.out.append(data)

    def ping(self) -> None:
        """Send a PING frame, which the client must answer."""
        self.queue(frames.frame(frames.PING, 0, 0, b"cometmq\0"))

    def announce_goaway(self) -> None:
        """Ask the client to open no more streams, and accept those that it has opened before it reads this.

        Clients answer the PING, and then nothing more can arrive: the next GOAWAY names the last stream.
        """
        self._announced_goaway = True
        self.queue(frames.goaway(frames.MAX_STREAM, ErrorCode.NO_ERROR) + frames.frame(frames.PING, 0, 0, _LAST_PING))

    @property
    def is_over(self) -> bool:
        """True after GOAWAY once all streams have ended; calls without a stream are answered in their round."""
        return self._sent_goaway and not self.streams

    def send_goaway(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """Send a GOAWAY frame, and accept no new streams."""
        if not self._sent_goaway:
            self._sent_goaway = True
            self.queue(frames.goaway(self._last_stream, code, reason))

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream and its receiver, breaking reference cycles."""
        stream.handle(StreamEvent.CLOSE)
        self.streams.pop(stream.id, None)
        self.blocked.pop(stream, None)
        stream.inbound = None
        stream.drop_unsent()

    def _cancel(self, stream: Stream) -> None:
        inbound = stream.inbound
        self.close_stream(stream)
        if inbound is not None:
            inbound.cancel()

    def cancel_streams(self) -> None:
        """Cancel all streams because the connection is lost."""
        self._is_lost = True
        self._free_block()
        for stream in list(self.streams.values()):
            self._cancel(stream)

    # --- receiving ------------------------------------------------------------------------------
    def add_bytes(self, data: bytes) -> None:
        """Add bytes from the client, to be handled later."""
        self._buffer = self._buffer + data if self._buffer else data

    def handle_frames(self, limit: int) -> bool:
        """Handle up to ``limit`` complete frames; return True if more frames may be left.

        :raises Http2Error: the connection must be closed.
        """
        buffer = self._buffer
        at = 0
        if not self.has_preface:
            if len(buffer) < len(frames.PREFACE):
                if not frames.PREFACE.startswith(buffer):
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port accepts only HTTP/2")
                return False
            if not buffer.startswith(frames.PREFACE):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port accepts only HTTP/2")
            self.has_preface = True
            at = len(frames.PREFACE)
        end = len(buffer)
        unpack = frames.HEAD.unpack_from
        self._frames_left = limit
        self.must_wait = False
        try:
            while self._frames_left and end - at >= frames.HEAD_BYTES:
                high, low, kind, flags, number = unpack(buffer, at)
                if kind == frames.HEADERS and self.take_calls is not None:
                    taken = self._take_calls(self.take_calls, buffer, at)
                    if taken != at:
                        at = taken
                        continue
                    if self.must_wait:
                        return True
                    if self._is_cut:
                        return False
                length = high << 8 | low
                if length > FRAME_BYTES:
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
                begin = at + frames.HEAD_BYTES
                if end - begin < length:
                    return False
                at = begin + length
                self._frames_left -= 1
                self._frame(kind, flags, number & 0x7FFFFFFF, buffer[begin:at])
        finally:
            self._buffer = buffer[at:] if at else buffer
        return not self._frames_left

    def _take_calls(self, take: CallTaker, buffer: bytes, at: int) -> int:
        """Handle calls without streams; return where they end."""
        self._is_cut = False
        if (
            self._block is not None
            or self._sent_goaway
            or self._first_window < MAX_TAKEN_ANSWER_BYTES
            or len(self.streams) >= MAX_STREAMS
        ):
            return at
        taken = take(self._decoder, buffer, at, self._last_stream)
        if taken is None:
            self.must_wait = True
            return at
        at, self._last_stream, size, calls, self._is_cut = taken
        self._frames_left = max(self._frames_left - 2 * calls, 0)
        self._count_unread(size)
        return at

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame interrupts a header block")
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.RST_STREAM:
            self._control_frames.spend()
            stream = self.streams.get(number)
            if number == 0 or len(payload) != 4 or self._is_idle(number):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "malformed RST_STREAM")
            if stream is not None:
                self._cancel(stream)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.PING:
            if number or len(payload) != 8:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "malformed PING")
            if not flags & frames.ACK:
                self._control_frames.spend()
                self.queue(frames.frame(frames.PING, frames.ACK, 0, payload))
            elif payload == _LAST_PING and self._announced_goaway:
                self.send_goaway()
        elif kind == frames.CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "clients must not send PUSH_PROMISE")
        else:  # PRIORITY, a client's GOAWAY, and frames of later versions are ignored
            self._control_frames.spend()

    def queue_data(self, number: int, data: bytes | memoryview, *, is_whole: bool) -> None:
        """Queue a data frame.

        :param is_whole: True for the last frame of a message.
        """
        if is_whole:
            self._control_frames.earn()
        self.queue(frames.frame(frames.DATA, 0, number, data))

    def queue_answer(self, data: bytes) -> None:
        """Queue all frames of a response, of which one is the only data frame."""
        self._control_frames.earn()
        self.queue(data)

    def reserve(self, size: int, count: int) -> bool:
        """Count the data of responses that the caller sends itself; return False if the client's windows have no room.

        :param size: size of the data of all responses together.
        """
        if size > self.window or size > self._first_window or self.blocked:
            return False
        self.window -= size
        self._control_frames.earn(count)
        return True

    def send_answers(self, data: bytes) -> None:
        """Send the frames of responses of :attr:`take_calls`, each of three frames, when the windows have room."""
        for answer in answers_in(data):
            self.send_answer(*answer)

    def send_answer(self, number: int, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send a complete response to a call of :attr:`take_calls`, when the windows have room.

        After the connection is lost, do nothing, because nothing would free the response.
        """
        if self._is_lost:
            return
        window = min(self._first_window + self._given.pop(number, 0), _MAX_WINDOW)
        stream = self.streams[number] = Stream(self, number, window)
        stream.handle(StreamEvent.REMOTE_END)
        stream.answer(headers, data, trailers)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        self._count_unread(length)
        stream = self.streams.get(number)
        if stream is None or stream.inbound is None:
            if number == 0 or self._is_idle(number):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on an idle stream")
            self._control_frames.spend()  # the stream has already been answered or reset, or began after GOAWAY
            return
        if not stream.may_receive:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        is_end = flags & frames.END_STREAM
        if payload:
            stream.unread += length
            if stream.unread > HTTP2_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the window")
            if stream.unread > HTTP2_WINDOW_BYTES // 2 and not is_end:
                self.queue(frames.window_update(number, stream.unread))
                stream.unread = 0
            stream.inbound.receive_data(payload)
        elif not is_end:
            self._control_frames.spend()
        if is_end and number in self.streams:
            self._end_request(stream)

    def _is_idle(self, number: int) -> bool:
        """Return whether the client has not begun a stream; streams that it begins after GOAWAY are not remembered."""
        return number > self._last_stream and not self._sent_goaway

    def _count_unread(self, size: int) -> None:
        self._unread += size
        if self._unread > HTTP2_WINDOW_BYTES // 2:
            self.queue(frames.window_update(0, self._unread))
            self._unread = 0

    @staticmethod
    def _end_request(stream: Stream) -> None:
        stream.handle(StreamEvent.REMOTE_END)
        if stream.inbound is not None:
            stream.inbound.receive_end()

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.HAS_PRIORITY:
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._handle_block(flags, number, payload)
        else:
            self._block, self._block_flags, self._block_stream = bytearray(payload), flags, number
            self._count_incomplete(len(payload))

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or number != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if not payload:
            self._control_frames.spend()
        self._block += payload
        self._count_incomplete(len(payload))
        if len(self._block) > MAX_HEADER_BLOCK_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"the headers are larger than {MAX_HEADER_BLOCK_BYTES} bytes")
        if flags & frames.END_HEADERS:
            self._handle_block(self._block_flags, number, self._free_block())

    def _free_block(self) -> bytes:
        block, self._block = bytes(self._block or b""), None
        self._count_incomplete(-len(block))
        return block

    def _handle_block(self, flags: int, number: int, block: bytes) -> None:
        try:
            headers, size = self._decoder.decode(block)
        except HpackError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        stream = self.streams.get(number)
        if stream is not None:  # trailers of a request, which gRPC does not use
            if not flags & frames.END_STREAM or not stream.may_receive:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS in the middle of a stream")
            self._end_request(stream)
            return
        if number <= self._last_stream:
            if number and number % 2:
                self._control_frames.spend()  # trailers on a closed stream
                return
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "invalid stream id")
        if not number % 2:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "invalid stream id")
        if self._sent_goaway:
            return
        self._last_stream = number
        if len(self.streams) >= MAX_STREAMS:
            self._control_frames.spend()
            self.queue(frames.reset(number, ErrorCode.REFUSED_STREAM))
            return
        stream = self.streams[number] = Stream(self, number, self._first_window)
        is_end = flags & frames.END_STREAM
        if is_end:
            stream.handle(StreamEvent.REMOTE_END)
        inbound = self._open_stream(stream, headers, size)
        if number in self.streams:
            stream.inbound = inbound
            if is_end:
                inbound.receive_end()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % frames.SETTING.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
        if flags & frames.ACK:
            return
        self._control_frames.spend()
        first = self._first_window
        for key, value in frames.SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > _MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
                first = value
        change, self._first_window = first - self._first_window, first
        # before data: clients enlarge their windows when they get the acknowledgement
        self.queue(frames.frame(frames.SETTINGS, frames.ACK, 0))
        # at most once per SETTINGS frame, and as the last frame of this call: a thousand streams are enough work
        if change:
            self._frames_left = 0
            for stream in list(self.streams.values()):
                stream.window += change
                if stream.window > _MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
                if stream.unsent_bytes:
                    stream.pump()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed WINDOW_UPDATE")
        size = frames.NUMBER.unpack(payload)[0] & _MAX_WINDOW
        if not size:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
        if number == 0:
            self.window += size
            if self.window > _MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
            self._pump_blocked()
            return
        stream = self.streams.get(number)
        if stream is not None:
            stream.window += size
            if stream.window > _MAX_WINDOW:
                self._control_frames.spend()
                self.queue(frames.reset(number, ErrorCode.FLOW_CONTROL_ERROR))
                self._cancel(stream)
            else:
                stream.pump()
        elif self._is_idle(number):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        elif self.take_calls is not None:
            self._given[number] = min(self._given.get(number, 0) + size, _MAX_WINDOW)
            if len(self._given) > MAX_STREAMS:  # the oldest is probably of a stream that has ended
                del self._given[next(iter(self._given))]

    def _pump_blocked(self) -> None:
        while self.window > 0 and self.blocked:  # pump blocks a stream again only if the window is used up
            stream = next(iter(self.blocked))
            del self.blocked[stream]
            stream.pump()
