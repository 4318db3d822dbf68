"""HTTP/2 frames (RFC 9113, section 6): frame types, encoders, and a limit on clients' control frames."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final

from cometmq.clock import Clock
from cometmq.proxy.limits import HTTP2_CONTROL_FRAMES, HTTP2_CONTROL_FRAMES_A_SECOND

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes with which a client starts a connection."""
HEAD_BYTES: Final = 9

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_HEADER_LIST_SIZE: Final = 6
"""The identifiers of the HTTP/2 settings that are used."""

HEAD: Final = struct.Struct(">HBBBI")
"""A frame header: length (the upper two bytes, then the lowest byte), type, flags and stream id."""
SETTING: Final = struct.Struct(">HI")
NUMBER: Final = struct.Struct(">I")
MAX_STREAM: Final = 2**31 - 1
"""The largest stream id."""
_ANSWER_FRAMES: Final = 3
_EARNED_BY_DATA: Final = 2
"""Number of control frames that a client may send for each response frame; Java clients send a ping after each
frame.
"""


class ErrorCode(enum.IntEnum):
    """Reasons for closing a stream or connection (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The connection must be closed; ``code`` and the text are sent in GOAWAY."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Encode a frame."""
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Encode a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, size: int) -> bytes:
    """Encode a WINDOW_UPDATE frame; stream 0 stands for the connection."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size))


def reset(stream: int, code: ErrorCode) -> bytes:
    """Encode an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last_stream: int, code: ErrorCode, reason: str = "") -> bytes:
    """Encode a GOAWAY frame."""
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + reason.encode())


def answers_in(data: bytes) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    """Yield the stream and the payloads of each response of three frames: headers, data and trailers."""
    at = 0
    payloads: list[bytes] = []
    while at < len(data):
        high, low, _, _, number = HEAD.unpack_from(data, at)
        begin = at + HEAD_BYTES
        at = begin + (high << 8 | low)
        payloads.append(data[begin:at])
        if len(payloads) == _ANSWER_FRAMES:
            yield number, payloads[0], payloads[1], payloads[2]
            payloads.clear()


def unpadded(payload: bytes) -> bytes:
    """Return a padded frame's payload with the padding removed.

    :raises Http2Error: the padding is longer than the payload.
    """
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the payload")
    return payload[1 : len(payload) - payload[0]]


class ControlFrameBudget:
    """Limits the control frames that a client may send: pings, settings, resets and empty data frames.

    Control frames cause work but request nothing. The budget grows over time, and with each answer frame.
    """

    __slots__ = ("_clock", "_left", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = float(HTTP2_CONTROL_FRAMES)
        self._since = clock.monotonic()

    def earn(self, count: int = 1) -> None:
        """Allow more control frames, because ``count`` response frames are being sent."""
        self._left = min(self._left + _EARNED_BY_DATA * count, HTTP2_CONTROL_FRAMES)

    def spend(self) -> None:
        """Count a control frame.

        :raises Http2Error: the client has sent too many.
        """
        self._left -= 1
        if self._left >= 0:
            return
        now = self._clock.monotonic()
        earned = (now - self._since) * HTTP2_CONTROL_FRAMES_A_SECOND
        self._since = now
        self._left = min(self._left + earned, HTTP2_CONTROL_FRAMES)
        if self._left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many pings, resets or other control frames")
