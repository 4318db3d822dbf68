"""The half messages that are neither committed nor rolled back, and how far all before them are done with.

The half queue itself says what is sent: the table takes new offsets from it when it is asked, whole
ranges at once, so that sending costs nothing here. An offset leaves when its op message is stored.
What is noted of each beside its offset is read from its record when a round of checks first looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import msgspec

from cometmq.broker.half_message import check_times, first_offset, immunity_ms
from cometmq.limits import MAX_TRANSACTION_MARKS
from cometmq.message.properties import PGROUP
from cometmq.message.record import StoredRecord
from cometmq.store.message_store import MessageStore, TopicQueue

Settled = Callable[[], None]
"""Told that the change under way is stored, or is not."""


class Transaction(msgspec.Struct, gc=False):
    """What rounds of checks know of one open transaction."""

    first_offset: int
    """The queue offset of its first half message, which names it."""
    begun_ms: int
    """Milliseconds since 1970; by this broker's clock, unless the producer's is behind."""
    stored_ms: int
    """When its half message, or the copy that stands for it now, was stored; milliseconds since 1970."""
    immunity_ms: int | None
    check_times: int
    group: str


def describe(half: StoredRecord) -> Transaction:
    """What a half message says of its transaction."""
    checks = check_times(half)
    stored = half.store_timestamp
    return Transaction(
        first_offset(half),
        min(half.born_timestamp, stored) if checks else stored,
        stored,
        immunity_ms(half),
        checks,
        half.properties.get(PGROUP, ""),
    )


class OpenTransactions:
    """The table; see the module's docstring.

    :param open_before: what is open among the half messages that are in the queue already, ascending by
        offset; of copies something must be noted.
    :param mark: a place in the half queue and one in the op queue, so that no op before the one is about a
        half message behind the other.
    """

    def __init__(
        self,
        store: MessageStore,
        halves: TopicQueue,
        ops: TopicQueue,
        open_before: dict[int, Transaction | None],
        mark: tuple[int, int],
    ) -> None:
        self._store = store
        self._halves = halves
        self._ops = ops
        self._open = open_before
        self._copies = {
            noted.first_offset: offset
            for offset, noted in open_before.items()
            if noted is not None and noted.first_offset != offset
        }
        """First offset → offset of the copy that stands for it now."""
        self._changing: dict[int, list[Settled]] = {}
        self._taken_to = halves.committed
        self._marks = [mark]

    # --- what is open -------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """How many there are, those included that wait for their turn to be stored."""
        return len(self._open) + self._halves.next_offset - self._taken_to

    def offsets(self, at: int = 0) -> list[int]:
        """The half queue offsets of all that are open, from ``at`` on, ascending."""
        self._take()
        return [offset for offset in self._open if offset >= at]

    def oldest(self) -> Transaction | None:
        """The one that began first, ``None`` when nothing is open; some 40 ms where there are half a million."""
        self._take()
        candidates = [noted for noted in self._open.values() if noted is not None]
        # Those that no round has looked at yet stand in the order in which they were stored.
        unseen = next((offset for offset, noted in self._open.items() if noted is None), None)
        half = None if unseen is None else self.record(unseen)
        if half is not None:
            candidates.append(describe(half))
        return min(candidates, key=attrgetter("begun_ms"), default=None)

    def current(self, offset: int, first: int) -> int | None:
        """Where a half message that stood at ``offset``, and at ``first`` at first, stands now; None: it is over."""
        self._take()
        if offset in self._open:
            return offset
        return self._copies.get(first)

    def stands_at(self, offset: int, physical_offset: int) -> bool:
        """Whether the half message at an offset is the record at that place of the log.

        A record that claims so need not be true: a client may have written it, as the body of a message.
        """
        unit = self._halves.unit(offset)
        return unit is not None and unit[0] == physical_offset

    def record(self, offset: int) -> StoredRecord | None:
        """The half message at an offset; None when it cannot be read."""
        unit = self._halves.unit(offset)
        return self._store.decoded_at(unit[0]) if unit is not None else None

    def is_open(self, offset: int) -> bool:
        """Whether a half message stands at the offset whose transaction is open."""
        self._take()
        return offset in self._open

    def known(self, offset: int) -> Transaction | None:
        """What was noted of an open transaction by :meth:`note`."""
        return self._open.get(offset)

    def note(self, half: StoredRecord) -> Transaction:
        """Read from its half message what checks must know of an open transaction, and keep it."""
        noted = self._open[half.queue_offset] = describe(half)
        return noted

    def _take(self) -> None:
        """Take over the half messages stored since."""
        end = self._halves.committed
        if end > self._taken_to:
            self._open.update(dict.fromkeys(range(self._taken_to, end)))
            self._taken_to = end

    # --- changes under way --------------------------------------------------------------------
    def is_changing(self, offset: int) -> bool:
        """Whether an end, or a copy, of a transaction is put and not yet stored."""
        return offset in self._changing

    def when_settled(self, offset: int, settled: Settled) -> None:
        """Be told when the change under way is stored, or is not."""
        self._changing[offset].append(settled)

    def begin_change(self, offset: int) -> None:
        """Note that an end, or a copy, is being put; :meth:`ended`, :meth:`replaced` or :meth:`unchanged` follows."""
        self._changing[offset] = []

    def ended(self, offset: int) -> None:
        """The end of a transaction is stored."""
        noted = self._open.pop(offset, None)
        if noted is not None:
            self._copies.pop(noted.first_offset, None)
        self._settle(offset)

    def replaced(self, offset: int, copy: int, noted: Transaction) -> None:
        """A copy that stands at offset ``copy`` now is stored, with what is known of it."""
        self._take()
        self._open.pop(offset, None)
        self._open[copy] = noted
        self._copies[noted.first_offset] = copy
        self._settle(offset)

    def unchanged(self, offset: int) -> None:
        """Nothing was stored: the transaction is as it was."""
        self._settle(offset)

    def _settle(self, offset: int) -> None:
        for settled in self._changing.pop(offset):
            settled()

    def drop(self, offset: int) -> None:
        """Forget a transaction whose half message cannot be read any more."""
        noted = self._open.pop(offset, None)
        if noted is not None:
            self._copies.pop(noted.first_offset, None)

    # --- progress -----------------------------------------------------------------------------
    def progress(self) -> tuple[int, int]:
        """Up to where half messages are done with, and up to which op messages nobody needs.

        A start reads both queues from there on.
        """
        self._take()
        done = next(iter(self._open), self._taken_to)
        marks = self._marks
        marks.append((self._taken_to, self._ops.committed))
        while len(marks) > 1 and marks[1][0] <= done:
            del marks[0]
        if len(marks) > MAX_TRANSACTION_MARKS:
            del marks[1::2]
        return done, marks[0][1]
