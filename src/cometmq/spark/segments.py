"""Cuts ranges of queue offsets into segments of as many as one answer of the broker holds.

How many that are depends on the size of the messages and on the broker's limits (Apache: 32 messages or 256 KiB), so
it is learnt from the answers. A segment that takes one answer is done when that arrives: then answers of segments
that are asked for side by side arrive in the order in which they are needed, and none has to be kept for later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cometmq.spark.blocks import Piece
from cometmq.spark.queues import OffsetRange, Queue

MAX_IN_FLIGHT: Final = 12
"""Segments asked for side by side, once the first answer has shown how many messages one holds."""


@dataclass(slots=True)
class Segment:
    """A part of a range: what has arrived of it, and where it goes on."""

    part: OffsetRange
    at: int
    asked: int | None = None
    """Opaque of the request in flight."""
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0

    @property
    def queue(self) -> Queue:
        """Whose messages they are."""
        return self.part.queue

    @property
    def done(self) -> bool:
        """Whether all of it has arrived."""
        return self.at >= self.part.end


class Segments:
    """The segments of some ranges, cut off one by one, in order.

    :param most_offsets: of a segment, as long as no answer has shown that less come together.
    """

    def __init__(self, ranges: Iterable[OffsetRange], most_offsets: int) -> None:
        self._waiting = deque(part for part in ranges if len(part))
        self._most_offsets = most_offsets
        self._offsets = most_offsets
        self._most_bytes = 0
        """Of an answer so far."""
        self.in_flight = 1

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def next_queue(self) -> Queue:
        """The queue of what is cut next."""
        return self._waiting[0].queue

    def cut(self) -> Segment:
        """Take the next segment."""
        part = self._waiting.popleft()
        end = min(part.first + self._offsets, part.end)
        if end < part.end:
            self._waiting.appendleft(OffsetRange(part.queue, end, part.end))
        return Segment(OffsetRange(part.queue, part.first, end), part.first)

    def learn(self, segment: Segment, before: int, size: int) -> None:
        """Note that an answer of ``size`` bytes led a segment on from offset ``before``."""
        self.in_flight = MAX_IN_FLIGHT
        self._most_bytes = max(self._most_bytes, size)
        if not segment.done:  # a little less than came now, since sizes differ
            self._offsets = max((segment.at - before) * 15 // 16, 1)
        elif segment.at - before >= self._offsets and 2 * size < self._most_bytes:
            self._offsets = min(2 * self._offsets, self._most_offsets)
