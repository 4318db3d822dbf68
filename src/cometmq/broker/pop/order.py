"""OrderedMessages: what a group was handed in order from one queue (``ConsumerOrderInfoManager``).

While a message of the queue is neither acknowledged nor past its time, nothing further is handed out, except to the
same attempt: a client that repeats a request, whose answer it lost, gets the same messages again. What was acknowledged
is not handed out again, also when a message before it was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cometmq.broker.pop.invisible import NEVER


class Handed(NamedTuple):
    """A message that is not acknowledged; times are milliseconds since 1970."""

    pop_time: int
    due: int
    times: int
    """How often it was handed out before."""


class OrderedMessages:
    """The messages of one queue, few at any time: a pop hands out 32 at most."""

    __slots__ = ("attempt_id", "messages", "next_offset")

    def __init__(self, next_offset: int, attempt_id: str = "") -> None:
        self.next_offset = next_offset
        """The offset behind all messages that were ever handed out."""
        self.attempt_id = attempt_id
        self.messages: dict[int, Handed] = {}

    @property
    def committed(self) -> int:
        """The offset of the group: all before is acknowledged."""
        return min(self.messages, default=self.next_offset)

    @property
    def latest(self) -> int:
        """The latest pop time."""
        return max((handed.pop_time for handed in self.messages.values()), default=0)

    def is_locked(self, now_ms: int, attempt_id: str) -> bool:
        """Tell whether an attempt gets nothing now."""
        if attempt_id and attempt_id == self.attempt_id:
            return False
        return any(handed.due > now_ms for handed in self.messages.values())

    def next_due(self, now_ms: int) -> int:
        """The time at which the lock ends by itself, :data:`NEVER` when there is none."""
        return max((handed.due for handed in self.messages.values() if handed.due > now_ms), default=NEVER)

    def again(self, most: int) -> list[int]:
        """The first offsets that are not acknowledged."""
        return sorted(self.messages)[:most]

    def counts(self, offsets: Sequence[int], attempt_id: str) -> list[int]:
        """How often each was handed out before; for the same attempt it does not count."""
        more = 0 if attempt_id and attempt_id == self.attempt_id else 1
        return [handed.times + more if (handed := self.messages.get(offset)) else 0 for offset in offsets]

    def move_to(self, offset: int) -> None:
        """Somebody else set the group's offset."""
        if offset < self.committed:
            self.messages.clear()
            self.next_offset = offset
            return
        for old in [old for old in self.messages if old < offset]:
            del self.messages[old]
        self.next_offset = max(self.next_offset, offset)
