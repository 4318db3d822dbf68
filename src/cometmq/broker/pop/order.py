"""OrderedMessages: the messages in one queue that a group receives in order (``ConsumerOrderInfoManager``).

In queue order, no further message is handed out while an unacknowledged message is invisible. In message group order,
the same rule holds within each message group: messages in a locked group wait, and later messages in other groups are
handed out. Messages without a message group form one group. A client that did not receive the response repeats its pop
with the same attempt ID, and gets the same messages again. An acknowledged message is not handed out again, even if an
earlier message was not acknowledged.

Only the first unacknowledged message, of the queue or of its message group, uses up attempts: the messages behind it
were handed out with it, but a consumer that keeps the order does not begin them before it. So a redelivery counts only
for the first message, and only the first one may become a dead letter. When it does, or when it is handed out again
without the messages behind it, the delivery that has just ended does not count for them. In Apache's broker, each
redelivery counts for all messages of its batch.

Both orders share this state, so a consumer group may switch between them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from cometmq.broker.limits import MAX_ORDERED_MESSAGES
from cometmq.broker.pop.entries import PoppedInOrder
from cometmq.broker.pop.invisible import NEVER


class HandedOut(NamedTuple):
    """An unacknowledged message; times are milliseconds since 1970."""

    pop_time: int
    due: int
    times: int
    """Number of earlier deliveries that count; negative if the last one does not count, or if there was none."""


WAITING: Final = HandedOut(-1, 0, -1)
"""State of a message that waits for its message group while later messages in other groups are handed out."""

NO_FOLLOWER: Final = -1

WAITS: Final = -1
NOT_BEGUN: Final = -2
"""In entries, the counts of new messages that wait, and of those from :meth:`OrderedMessages.not_begun`."""


class OrderedMessages:
    """The unacknowledged messages in one queue, at most ``MAX_ORDERED_MESSAGES`` plus those from one pop."""

    __slots__ = ("attempts", "by_group", "groups", "messages", "next_offset")

    def __init__(self, next_offset: int, *, by_group: bool = False) -> None:
        self.next_offset = next_offset
        """The offset after all messages that have been handed out or are waiting."""
        self.messages: dict[int, HandedOut] = {}
        self.attempts: dict[int, str] = {}
        """Attempt IDs by pop time; each pop from a queue has its own pop time."""
        self.groups: dict[int, str] = {}
        """Message groups by offset, as far as they have been read from the log."""
        self.by_group = by_group
        """True if the last pop was in message group order."""

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
        return sum(handed.pop_time >= 0 for handed in self.messages.values())

    def held(self, offset: int, pop_time: int) -> HandedOut | None:
        """Return the message at an offset if it was handed out with this pop time."""
        handed = self.messages.get(offset)
        return handed if handed is not None and handed.pop_time == pop_time >= 0 else None

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

    def dead(
        self, now_ms: int, most: int, group_of: Callable[[int], str] = lambda _: ""
    ) -> list[tuple[int, HandedOut]]:
        """Return the due messages that are first, and that have already been redelivered ``most`` times.

        :param group_of: returns the message group at an offset; not called in queue order.
        """
        tried = {
            offset: handed
            for offset, handed in self.messages.items()
            if handed.times >= max(most, 0) and handed.due <= now_ms
        }
        last = max(tried, default=-1)
        firsts = takewhile(lambda offset: offset <= last, self._firsts(group_of))
        return [(offset, tried[offset]) for offset in firsts if offset in tried]

    def _firsts(self, group_of: Callable[[int], str]) -> Iterator[int]:
        """Yield the first message, or that of each message group, ascending."""
        if not self.by_group:
            yield from [self.committed] if self.messages else []
            return
        seen: set[str] = set()
        for offset in sorted(self.messages):
            group = group_of(offset)
            if group not in seen:
                seen.add(group)
                yield offset

    def find_followers(self, offsets: Iterable[int], group_of: Callable[[int], str]) -> dict[int, int]:
        """Return the next message behind each of some messages, or ``NO_FOLLOWER``; in message group order, that of its
        message group.
        """
        found = dict.fromkeys(offsets, NO_FOLLOWER)
        behind: dict[str, int] = {}
        for offset in sorted(self.messages, reverse=True) if found else ():
            group = group_of(offset) if self.by_group else ""
            if offset in found:
                found[offset] = behind.get(group, NO_FOLLOWER)
            behind[group] = offset
        return found

    def _locks(self, handed: HandedOut, now_ms: int, attempt_id: str) -> bool:
        return handed.due > now_ms and not self._is_same_attempt(handed, attempt_id)

    def _is_same_attempt(self, handed: HandedOut, attempt_id: str) -> bool:
        return bool(attempt_id) and self.attempts.get(handed.pop_time) == attempt_id

    # --- changes --------------------------------------------------------------------------------
    def counts(self, offsets: Sequence[int], attempt_id: str, firsts: Container[int]) -> list[int]:
        """Return the number of earlier deliveries of each message that count.

        A pop that repeats the attempt id of the last delivery is the same delivery.

        :param firsts: the messages that are first; the last delivery of other messages does not count.
        """
        return [self._count(offset, attempt_id, is_first=offset in firsts) for offset in offsets]

    def _count(self, offset: int, attempt_id: str, *, is_first: bool) -> int:
        handed = self.messages.get(offset, WAITING)
        return max(handed.times + (is_first and not self._is_same_attempt(handed, attempt_id)), 0)

    def not_begun(self, offsets: Sequence[int], group_of: Callable[[int], str] = lambda _: "") -> list[int]:
        """Return the messages whose last delivery does not count any more when a pop hands out these messages.

        :param group_of: returns the message group at an offset; not needed in queue order.
        """
        again: dict[str, int] = {}
        for offset in offsets:
            if offset in self.messages:
                again.setdefault(group_of(offset), offset)
        chosen = set(offsets)
        return [
            offset
            for offset, handed in (self.messages.items() if again else ())
            if handed.times >= 0 and offset not in chosen and offset > again.get(group_of(offset), offset)
        ]

    def popped(self, entry: PoppedInOrder) -> OrderedMessages:
        """Return the state after a pop, without changing this object."""
        made = OrderedMessages(entry.next_offset, by_group=entry.by_group)
        made.messages.update(self.messages)
        due = entry.pop_time + entry.invisible_ms
        for offset, count in zip(entry.offsets, entry.counts, strict=False):
            if count == NOT_BEGUN:
                made.discount(offset)
            else:
                made.messages[offset] = WAITING if count < 0 else HandedOut(entry.pop_time, due, count)
        live = {handed.pop_time for handed in made.messages.values()}
        made.attempts = {pop_time: kept for pop_time, kept in self.attempts.items() if pop_time in live}
        if entry.attempt_id:
            made.attempts[entry.pop_time] = entry.attempt_id
        made.groups = self.groups
        return made

    def copy(self) -> OrderedMessages:
        """Return a copy that can be changed alone."""
        made = OrderedMessages(self.next_offset, by_group=self.by_group)
        made.messages = dict(self.messages)
        made.attempts = dict(self.attempts)
        return made

    def discount(self, offset: int) -> HandedOut | None:
        """Do not count the last delivery of a message; return its state before, or ``None`` if it had no delivery."""
        handed = self.messages.get(offset, WAITING)
        if handed.pop_time < 0:
            return None
        self.messages[offset] = handed._replace(times=max(handed.times - 1, -1))
        return handed

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
