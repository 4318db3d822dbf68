"""Frames, and a decoder that extracts them from a stream of bytes (sans I/O; ``NettyDecoder``).

Layout, big-endian::

    int32 total       length of all that follows
    int32 mark        serialize type in the first byte, header length in the other three
    bytes header
    bytes body        may be empty
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.errors import CometMQError
from cometmq.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES

JSON: Final = 0
ROCKETMQ: Final = 1

_WORDS: Final = struct.Struct(">iI")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_CODE: Final = re.compile(rb'"code": ?([0-9]{1,9})')
_LARGE_FRAME_BYTES: Final = 64 * 1024
"""Minimum size of a frame whose pieces are stored as they arrive and joined when the frame is complete."""
_SMALL_PIECE_BYTES: Final = 16 * 1024
"""Minimum size of a stored piece. Smaller pieces are joined immediately, so that many tiny pieces need little memory.
"""


_HTTP: Final = frozenset({b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI"})
"""First bytes of HTTP, which as a frame's length would be more than a gigabyte."""


FrameTaker = Callable[[bytes, int], int]
"""Handles complete frames in ``data`` from offset ``at``; returns the offset of the first frame that it did not handle.
"""


class FrameError(CometMQError):
    """The bytes are not a valid frame. The connection is closed without a response."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A decoded frame."""

    serialize_type: int
    header: bytes
    body: bytes


def encode_frame(serialize_type: int, header: bytes, body_length: int) -> bytes:
    """Encode the part of a frame before its body; the caller sends the body."""
    return _WORDS.pack(4 + len(header) + body_length, serialize_type << 24 | len(header)) + header


def whole_frame(data: bytes) -> Frame | None:
    """Return the frame in ``data`` if it is valid and complete, and nothing follows it; otherwise, ask a decoder."""
    size = len(data) - 4
    if size < 4 or size > MAX_FRAME_BYTES:
        return None
    total, mark = _WORDS.unpack_from(data)
    body_at = 8 + (mark & _HEADER_LENGTH_MASK)
    if total != size or body_at > len(data) or body_at - 8 > MAX_HEADER_BYTES or mark >> 24 > ROCKETMQ:
        return None
    return Frame(mark >> 24, data[8:body_at], data[body_at:])


class FrameDecoder:
    """Collects bytes and returns complete frames.

    ``push`` adds any piece of the stream; ``next`` returns the next complete frame or ``None``. The same bytes give the
    same frames, no matter how they are split. The decoder keeps at most the last piece and the incomplete frame before
    it.
    """

    __slots__ = ("_at", "_data", "_large", "_max_frame_bytes", "_need", "pending")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data: bytes | bytearray = b""
        self._at = 0
        self._need = 4
        self._large: _LargeFrame | None = None
        self.pending = 0
        """Number of bytes that have not yet been returned as a frame."""

    def begin(self, data: bytes, at: int) -> None:
        """Continue with ``data[at:]``; all earlier bytes have already been returned as frames."""
        self._data = data
        self._at = at
        self.pending = len(data) - at

    def push(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.pending += len(data)
        if self._large is not None:
            self._large.push(data)
        elif self._at == len(self._data):
            self._data = data
            self._at = 0
        elif (waiting := len(self._data) - self._at) < self._need <= waiting + len(data):
            self._data = b"".join((memoryview(self._data)[self._at :], data))
            self._at = 0
        elif isinstance(self._data, bytearray):
            self._compact()
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
            self._at = 0

    def pass_to(self, taker: FrameTaker) -> None:
        """Let ``taker`` handle complete frames at the front. :meth:`next` does not return these frames."""
        if (large := self._large) is not None:
            if large.held < large.size:
                return
            self._data, self._at, self._need, self._large = large.joined(), 0, 4, None
        data = self._data
        if isinstance(data, bytearray):  # crumbs; a frame of them is copied once it is complete
            if len(data) - self._at < max(self._need, 8):
                return
            data = self._data = bytes(memoryview(data)[self._at :])
            self._at = 0
        at = taker(data, self._at)
        if at != self._at:
            self.pending -= at - self._at
            self._at, self._need = at, 4

    def _compact(self) -> None:
        if self._at:
            del self._data[: self._at]  # type: ignore[union-attr]
            self._at = 0

    def next(self) -> Frame | None:
        """Return the next complete frame, or ``None`` if there is none.

        :raises FrameError: a length is negative or exceeds the limit, a header is longer than its frame, or the
            serialize type is unknown.
        """
        if self._large is not None:
            return self._next_large(self._large)
        data = self._data
        at = self._at
        available = len(data) - at
        if available < self._need or available < 8:
            if available >= 4:
                self._check_total(int.from_bytes(data[at : at + 4], "big", signed=True))
            self._release()
            return None
        total, mark = _WORDS.unpack_from(data, at)
        header_length = mark & _HEADER_LENGTH_MASK
        serialize_type = mark >> 24
        if not 4 <= total <= self._max_frame_bytes:
            self._check_total(total)
        if header_length > total - 4 or header_length > MAX_HEADER_BYTES:
            raise FrameError(f"a header of {header_length} bytes does not fit in a frame of {total}")
        if serialize_type > ROCKETMQ:
            raise FrameError(f"unknown serialize type {serialize_type}")
        if available < 4 + total:
            if total >= _LARGE_FRAME_BYTES and available >= 8 + header_length:
                self._large = _LargeFrame(bytes(memoryview(data)[at:]), 4 + total, 8 + header_length)
                self._data, self._at = b"", 0
            else:
                self._need = 4 + total
                self._release()
            return None
        self._need = 4
        header_at = at + 8
        body_at = header_at + header_length
        end = at + 4 + total
        self._at = end
        self.pending = len(data) - end
        if isinstance(data, bytes):
            return Frame(serialize_type, data[header_at:body_at], data[body_at:end])
        return Frame(serialize_type, bytes(data[header_at:body_at]), bytes(data[body_at:end]))

    def next_code(self) -> int:
        """Return the code of the next frame, or -1 if it cannot be seen without decoding the frame."""
        begin = self._at + _WORDS.size
        if len(self._data) < begin:
            return -1
        mark = _WORDS.unpack_from(self._data, self._at)[1]
        if mark >> 24 == ROCKETMQ:
            return int.from_bytes(self._data[begin : begin + 2], "big")
        found = _CODE.search(self._data, begin, begin + min(mark & _HEADER_LENGTH_MASK, MAX_HEADER_BYTES))
        return -1 if found is None else int(found[1])

    def _release(self) -> None:
        """Limit the buffer to twice the pending bytes, so that a few bytes do not keep a large read in memory."""
        if self._at > len(self._data) - self._at:
            self._data = self._data[self._at :]
            self._at = 0

    def _next_large(self, large: _LargeFrame) -> Frame | None:
        if large.held < large.size:
            return None
        frame, self._data = large.take()
        self._at, self._need, self._large = 0, 4, None
        self.pending = len(self._data)
        return frame

    def take_partial(self) -> tuple[Frame, int] | None:
        """Return a large frame with a complete header, its body bytes so far, and the number of missing bytes.

        The caller reads the missing bytes and does not push them.
        """
        large, self._large = self._large, None
        if large is None:
            return None
        self._need, self.pending = 4, 0
        return large.partial(), large.size - large.held

    def _check_total(self, total: int) -> None:
        if not 4 <= total <= self._max_frame_bytes:
            if total.to_bytes(4, signed=True) in _HTTP:
                raise FrameError("it is HTTP, not RocketMQ's protocol; check the port")
            raise FrameError(f"a frame of {total} bytes is too large; the maximum is {self._max_frame_bytes}")

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes of the stream, and return all frames that are complete now."""
        self.push(data)
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames


class _LargeFrame:
    """A frame whose header is complete and whose body arrives in many pieces."""

    __slots__ = ("_body_at", "_pieces", "held", "size")

    def __init__(self, first: bytes, size: int, body_at: int) -> None:
        self.size = size
        self.held = len(first)
        self._body_at = body_at
        self._pieces: list[bytes | bytearray] = [first]

    def push(self, data: bytes) -> None:
        last = self._pieces[-1]
        if self.held >= self.size:  # bytes after the frame stay with its last piece
            self._pieces[-1] = last + data
        elif len(data) >= _SMALL_PIECE_BYTES:
            self._pieces.append(data)
        elif isinstance(last, bytearray):
            last += data
        else:
            self._pieces.append(bytearray(data))
        self.held += len(data)

    def joined(self) -> bytes:
        """Return the complete frame and the bytes after it, as they arrived."""
        return b"".join(self._pieces)

    def partial(self) -> Frame:
        """Return the frame with the body bytes received so far."""
        first, *rest = self._pieces
        return self._frame(memoryview(first)[self._body_at :], *rest)

    def take(self) -> tuple[Frame, bytes]:
        """Return the complete frame, and the bytes after it."""
        first, *middle, last = self._pieces
        end = len(last) - (self.held - self.size)
        return self._frame(memoryview(first)[self._body_at :], *middle, memoryview(last)[:end]), bytes(last[end:])

    def _frame(self, *body: bytes | bytearray | memoryview) -> Frame:
        first = self._pieces[0]
        return Frame(_WORDS.unpack_from(first)[1] >> 24, bytes(first[8 : self._body_at]), b"".join(body))
