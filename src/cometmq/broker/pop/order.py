"""OrderedMessages: what a group was handed in order from one queue (``ConsumerOrderInfoManager``).

In the order of the queue nothing further is handed out while a message is neither acknowledged nor past its time. In
the order of message groups that holds for each message group alone: messages of one that must wait are noted here, and
those of others behind them are handed out. Messages without a message group are one group. The same attempt is let
through: a client that repeats a request, whose answer it lost, gets the same messages again. What was acknowledged is
not handed out again, also when a message before it was not.

Both orders share this state, so a group may change from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cometmq.broker.limits import MAX_ORDERED_MESSAGES
from cometmq.broker.pop.invisible import NEVER


class Handed(NamedTuple):
    """A message that is not acknowledged; times are milliseconds since 1970."""

    pop_time: int
    due: int
    times: int
    """Number of times that it was handed out before; negative for one that waits and never was."""


WAITING: Final = Handed(-1, 0, -1)
"""A message that waits for its message group while others behind it were handed out."""


class OrderedMessages:
    """The messages of one queue that are not acknowledged, ``MAX_ORDERED_MESSAGES`` and one pop at most."""

    __slots__ = ("attempts", "groups", "messages", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """The offset behind all messages that were ever handed out, or wait."""
        self.messages: dict[int, Handed] = {}
        self.attempts: dict[int, str] = {}
        """Attempt ids by pop time; each pop of a queue has its own pop time."""
        self.groups: dict[int, str] = {}
        """Message groups by offset, as far as they were read from the log."""

    @property
    def committed(self) -> int:
        """The offset of the group: all before is acknowledged."""
        return min(self.messages, default=self.next_offset)

    @property
    def latest(self) -> int:
        """The latest pop time."""
        return max((handed.pop_time for handed in self.messages.values()), default=0)

    @property
    def in_flight(self) -> int:
        """Messages that were handed out."""
        return sum(handed.times >= 0 for handed in self.messages.values())

    def held(self, offset: int, pop_time: int) -> Handed | None:
        """A message that is handed out with this pop time."""
        handed = self.messages.get(offset)
        return handed if handed is not None and handed.times >= 0 and handed.pop_time == pop_time else None

    # --- locks ----------------------------------------------------------------------------------
    def is_locked(self, now_ms: int, attempt_id: str) -> bool:
        """Tell whether an attempt gets nothing in the order of the queue."""
        return any(self._locks(handed, now_ms, attempt_id) for handed in self.messages.values())

    def locked_groups(self, now_ms: int, attempt_id: str, group_of: Callable[[int], str]) -> set[str]:
        """The message groups of which an attempt gets nothing."""
        return {group_of(offset) for offset, handed in self.messages.items() if self._locks(handed, now_ms, attempt_id)}

    @property
    def is_full(self) -> bool:
        """In the order of message groups no new message is handed out."""
        return len(self.messages) >= MAX_ORDERED_MESSAGES

    def may_give(self, now_ms: int) -> bool:
        """Tell whether a pop may find something that the one before did not: a message is visible, or none is here."""
        return any(handed.due <= now_ms for handed in self.messages.values()) or not self.messages

    def next_due(self, now_ms: int) -> int:
        """The time at which the next message is visible by itself, :data:`NEVER` when there is none."""
        return min((handed.due for handed in self.messages.values() if handed.due > now_ms), default=NEVER)

    def dead(self, now_ms: int, most: int) -> list[tuple[int, Handed]]:
        """The messages that were handed out ``most`` times again, and whose time is over."""
        return [
            (offset, handed)
            for offset, handed in sorted(self.messages.items())
            if handed.times >= most and handed.due <= now_ms
        ]

    def _locks(self, handed: Handed, now_ms: int, attempt_id: str) -> bool:
        return handed.due > now_ms and not self._is_same(handed, attempt_id)

    def _is_same(self, handed: Handed, attempt_id: str) -> bool:
        return bool(attempt_id) and self.attempts.get(handed.pop_time) == attempt_id

    # --- changes --------------------------------------------------------------------------------
    def counts(self, offsets: Sequence[int], attempt_id: str) -> list[int]:
        """Number of times that each was handed out before; for the same attempt it does not count."""
        found = map(self.messages.get, offsets)
        return [0 if handed is None else handed.times + (not self._is_same(handed, attempt_id)) for handed in found]

    def popped(
        self, offsets: Sequence[int], counts: Sequence[int], next_offset: int, times: Handed, attempt_id: str
    ) -> OrderedMessages:
        """The state after a pop; this one stays as it is.

        :param counts: how often each was handed out before; negative for one that waits.
        :param times: pop time and due time of those that were handed out.
        """
        made = OrderedMessages(next_offset)
        made.messages.update(self.messages)
        for offset, count in zip(offsets, counts, strict=False):
            made.messages[offset] = WAITING if count < 0 else times._replace(times=count)
        live = {handed.pop_time for handed in made.messages.values()}
        made.attempts = {pop_time: kept for pop_time, kept in self.attempts.items() if pop_time in live}
        if attempt_id:
            made.attempts[times.pop_time] = attempt_id
        made.groups = self.groups
        return made

    def remove(self, offset: int) -> None:
        """Let a message leave."""
        del self.messages[offset]
        self.groups.pop(offset, None)

    def move_to(self, offset: int) -> None:
        """Somebody else set the group's offset."""
        if offset < self.committed:
            self.messages.clear()
            self.next_offset = offset
            return
        for old in [old for old in self.messages if old < offset]:
            self.remove(old)
        self.next_offset = max(self.next_offset, offset)
