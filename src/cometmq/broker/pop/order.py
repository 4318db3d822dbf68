"""OrderedMessages: the messages in one queue that a group receives in order (``ConsumerOrderInfoManager``).

In queue order, no further message is handed out while an unacknowledged message is invisible. In message group order,
the same rule holds within each message group: messages in a locked group wait, and later messages in other groups are
handed out. Messages without a message group form one group. A client that did not receive the response repeats its pop
with the same attempt ID, and gets the same messages again. An acknowledged message is not handed out again, even if an
earlier message was not acknowledged.

Both orders share this state, so a consumer group may switch between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cometmq.broker.limits import MAX_ORDERED_MESSAGES
from cometmq.broker.pop.invisible import NEVER


class HandedOut(NamedTuple):
    """An unacknowledged message; times are milliseconds since 1970."""

    pop_time: int
    due: int
    times: int
    """Number of earlier deliveries; negative for a waiting message that has never been handed out."""


WAITING: Final = HandedOut(-1, 0, -1)
"""Delivery count of a message that waits for its message group while later messages in other groups are handed out."""


class OrderedMessages:
    """The unacknowledged messages in one queue, at most ``MAX_ORDERED_MESSAGES`` plus those from one pop."""

    __slots__ = ("attempts", "groups", "messages", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """The offset after all messages that have been handed out or are waiting."""
        self.messages: dict[int, HandedOut] = {}
        self.attempts: dict[int, str] = {}
        """Attempt IDs by pop time; each pop from a queue has its own pop time."""
        self.groups: dict[int, str] = {}
        """Message groups by offset, as far as they have been read from the log."""

    @property
    def committed(self) -> int:
        """Return the group's committed offset, before which all messages are acknowledged."""
        return min(self.messages, default=self.next_offset)

    @property
    def latest(self) -> int:
        """Return the latest pop time of the messages."""
        return max((handed.pop_time for handed in self.messages.values()), default=0)

    @property
    def in_flight(self) -> int:
        """Return the number of messages that are handed out."""
        return sum(handed.times >= 0 for handed in self.messages.values())

    def held(self, offset: int, pop_time: int) -> HandedOut | None:
        """Return the message at an offset if it was handed out with this pop time."""
        handed = self.messages.get(offset)
        return handed if handed is not None and handed.times >= 0 and handed.pop_time == pop_time else None

    # --- locks ----------------------------------------------------------------------------------
    def is_locked(self, now_ms: int, attempt_id: str) -> bool:
        """Return whether a pop with this attempt ID must wait in queue order."""
        return any(self._locks(handed, now_ms, attempt_id) for handed in self.messages.values())

    def find_locked_groups(self, now_ms: int, attempt_id: str, group_of: Callable[[int], str]) -> set[str]:
        """Return the message groups whose messages a pop with this attempt ID must not receive yet."""
        return {group_of(offset) for offset, handed in self.messages.items() if self._locks(handed, now_ms, attempt_id)}

    @property
    def is_full(self) -> bool:
        """Return whether no new message may be handed out in message group order."""
        return len(self.messages) >= MAX_ORDERED_MESSAGES

    def may_pop_more(self, now_ms: int) -> bool:
        """Return whether a pop may find messages, because a message is visible again or all are acknowledged."""
        return any(handed.due <= now_ms for handed in self.messages.values()) or not self.messages

    def next_due(self, now_ms: int) -> int:
        """Return the time when the next message becomes visible, or :data:`NEVER`."""
        return min((handed.due for handed in self.messages.values() if handed.due > now_ms), default=NEVER)

    def dead(self, now_ms: int, most: int) -> list[tuple[int, HandedOut]]:
        """Return the due messages that have already been redelivered ``most`` times."""
        return [
            (offset, handed)
            for offset, handed in sorted(self.messages.items())
            if handed.times >= most and handed.due <= now_ms
        ]

    def _locks(self, handed: HandedOut, now_ms: int, attempt_id: str) -> bool:
        return handed.due > now_ms and not self._is_same_attempt(handed, attempt_id)

    def _is_same_attempt(self, handed: HandedOut, attempt_id: str) -> bool:
        return bool(attempt_id) and self.attempts.get(handed.pop_time) == attempt_id

    # --- changes --------------------------------------------------------------------------------
    def counts(self, offsets: Sequence[int], attempt_id: str) -> list[int]:
        """Return the number of earlier deliveries of each message.

        A pop that repeats the attempt id of the last delivery is the same delivery.
        """
        found = map(self.messages.get, offsets)
        return [
            0 if handed is None else handed.times + (not self._is_same_attempt(handed, attempt_id)) for handed in found
        ]

    def popped(
        self, offsets: Sequence[int], counts: Sequence[int], next_offset: int, times: HandedOut, attempt_id: str
    ) -> OrderedMessages:
        """Return the state after a pop, without changing this object.

        :param counts: number of earlier deliveries of each message; negative for a waiting message.
        :param times: pop time and due time of the messages handed out.
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
        """Remove a message after its acknowledgement."""
        del self.messages[offset]
        self.groups.pop(offset, None)

    def move_to(self, offset: int) -> None:
        """Continue at an offset that was not set by a pop.

        Messages before it, or all if it is moved back, are forgotten.
        """
        if offset < self.committed:
            self.messages.clear()
            self.next_offset = offset
            return
        for old in [old for old in self.messages if old < offset]:
            self.remove(old)
        self.next_offset = max(self.next_offset, offset)
