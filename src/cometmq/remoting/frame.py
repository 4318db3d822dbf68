"""Frames: how commands are cut out of a stream of bytes (sans-IO; ``NettyDecoder``).

Layout, big-endian::

    int32 total       length of all that follows
    int32 mark        serialize type in the first byte, header length in the other three
    bytes header
    bytes body        may be empty
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from cometmq.errors import CometMQError
from cometmq.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES

JSON: Final = 0
ROCKETMQ: Final = 1

_WORDS: Final = struct.Struct(">iI")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF


class FrameError(CometMQError):
    """The bytes cannot be a frame; the connection that sent them is closed without an answer."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame taken apart."""

    serialize_type: int
    header: bytes
    body: bytes


def encode_frame(serialize_type: int, header: bytes, body_length: int) -> bytes:
    """Everything of a frame up to its body, which follows as it is."""
    return _WORDS.pack(4 + len(header) + body_length, serialize_type << 24 | len(header)) + header


class FrameDecoder:
    """Collects bytes and gives out whole frames.

    ``push`` takes any piece of the stream; ``next`` gives the next whole frame or ``None``. The same
    bytes give the same frames however they were cut. At most one frame beyond the last piece is kept.
    """

    __slots__ = ("_at", "_data", "_max_frame_bytes", "_need")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data: bytes | bytearray = b""
        self._at = 0
        self._need = 4

    @property
    def pending(self) -> int:
        """Bytes held that do not make a whole frame yet, or were not asked for."""
        return len(self._data) - self._at

    def push(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._at == len(self._data):
            self._data = data
            self._at = 0
        elif isinstance(self._data, bytearray):
            self._compact()
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
            self._at = 0

    def _compact(self) -> None:
        if self._at:
            del self._data[: self._at]  # type: ignore[union-attr]
            self._at = 0

    def next(self) -> Frame | None:
        """The next whole frame.

        :raises FrameError: a length over the limit or negative, a header longer than its frame, or an
            unknown serialize type.
        """
        data = self._data
        at = self._at
        available = len(data) - at
        if available < self._need or available < 8:
            if available >= 4:
                self._check_total(int.from_bytes(data[at : at + 4], "big", signed=True))
            return None
        total, mark = _WORDS.unpack_from(data, at)
        header_length = mark & _HEADER_LENGTH_MASK
        serialize_type = mark >> 24
        if not 4 <= total <= self._max_frame_bytes:
            self._check_total(total)
        if header_length > total - 4 or header_length > MAX_HEADER_BYTES:
            raise FrameError(f"a header of {header_length} bytes in a frame of {total}")
        if serialize_type > ROCKETMQ:
            raise FrameError(f"unknown serialize type {serialize_type}")
        if available < 4 + total:
            self._need = 4 + total
            return None
        self._need = 4
        header_at = at + 8
        body_at = header_at + header_length
        end = at + 4 + total
        self._at = end
        if isinstance(data, bytes):
            return Frame(serialize_type, data[header_at:body_at], data[body_at:end])
        return Frame(serialize_type, bytes(data[header_at:body_at]), bytes(data[body_at:end]))

    def _check_total(self, total: int) -> None:
        if not 4 <= total <= self._max_frame_bytes:
            raise FrameError(f"a frame of {total} bytes; at most {self._max_frame_bytes} are taken")

    def feed(self, data: bytes) -> list[Frame]:
        """``push`` and all whole frames at once."""
        self.push(data)
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames
