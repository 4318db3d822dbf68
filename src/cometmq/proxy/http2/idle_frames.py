"""The bound on frames that make work without asking for anything: pings, settings, resets, empty data."""

from __future__ import annotations

from typing import Final

from cometmq.clock import Clock
from cometmq.proxy.http2.frames import ErrorCode, Http2Error
from cometmq.proxy.limits import HTTP2_IDLE_FRAMES, HTTP2_IDLE_FRAMES_A_SECOND

_EARNED_BY_DATA: Final = 2
"""Such frames that a frame of an answer allows: Java's clients send a ping after each, to measure the connection."""


class IdleFrames:
    """The frames of this kind that one connection may still send; it gets more with time and with answers."""

    __slots__ = ("_clock", "_left", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = float(HTTP2_IDLE_FRAMES)
        self._since = clock.monotonic()

    def earn(self) -> None:
        """Allow some more for a frame of an answer."""
        self._left = min(self._left + _EARNED_BY_DATA, HTTP2_IDLE_FRAMES)

    def spend(self) -> None:
        """Count a frame.

        :raises Http2Error: there were too many.
        """
        self._left -= 1
        if self._left >= 0:
            return
        now = self._clock.monotonic()
        earned = (now - self._since) * HTTP2_IDLE_FRAMES_A_SECOND
        self._since = now
        self._left = min(self._left + earned, HTTP2_IDLE_FRAMES)
        if self._left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many pings, resets or other frames that ask for nothing")
