"""The table of open transactions: half messages without an op message (``TransactionalMessageServiceImpl``).

New transactions are read from the half queue when the table is used, so sends need not update it. An offset is removed
when its op message is stored. The other values of a transaction are read from its record when it is first checked.

When a broker starts, it reads both queues starting at the offsets of CID_RMQ_SYS_TRANS; everything before them is
finished. It completes two operations that a crash can interrupt: a commit whose op message is missing, and a half
message that already has a copy. In both cases the missing op message is written at the start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from cometmq.broker.limits import MAX_TRANSACTION_MARKS
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.transaction.half_message import HALF_QUEUE, describe, op_message
from cometmq.broker.transaction.open_at_start import find_open, half_at
from cometmq.broker.transaction.open_pages import OpenPages, Pages, Transaction
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.store_turn import StoreTurn, WhenStored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from cometmq.message.record import StoredRecord
from cometmq.store.message_store import ConsumeQueue, MessageStore

Changed = Callable[[], None]
"""Callback that is called when a transaction's current change has been stored or has failed."""


class OpenTransactions:
    """The table of open transactions.

    ``unmarked`` contains the offsets of ended half messages that have no op message yet.
    """

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager, turn: StoreTurn, store_host: bytes) -> None:
        self._store = store
        self._turn = turn
        self._store_host = store_host
        self._halves = store.queue(TRANS_HALF_TOPIC, HALF_QUEUE)
        self._ops = store.queue(TRANS_OP_HALF_TOPIC, HALF_QUEUE)
        mark = _start_offset(offsets, self._halves), _start_offset(offsets, self._ops)
        found, self.unmarked = find_open(store, self._halves, self._ops, mark)
        self._open = OpenPages()
        self._copies: Pages[int] = Pages()
        """Offset of the current copy, by the transaction's first offset."""
        run = range(0)
        """Consecutive half messages that are not recorded."""
        for offset, noted in found.items():
            if noted is None:
                if offset != run.stop:
                    self._open.add(run)
                    run = range(offset, offset)
                run = range(run.start, offset + 1)
                continue
            self._open.add(run)
            run = range(0)
            self._open.record(offset, noted)
            if noted.first_offset != offset:
                self._copies.put(noted.first_offset, offset)
        self._open.add(run)
        self._changing: dict[int, list[Changed]] = {}
        self._read_to = self._halves.committed
        self._marks = [mark]
        """Pairs of a half queue offset and an op queue offset: no op message before the second refers to a half message
        after the first.
        """

    # --- queries ------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """Return the number of open transactions, including half messages that are still being stored."""
        self._turn.take_back()
        return self.count_before_batch

    @property
    def count_before_batch(self) -> int:
        """Return the number of open transactions, except those in the compiled core's current batch."""
        return len(self._open) + self._halves.next_offset - self._read_to

    def offsets(self, at: int = 0, most: int | None = None) -> list[int]:
        """Return the half queue offsets of the open transactions whose messages may be read, in ascending order.

        :param at: the lowest offset.
        :param most: how many offsets to return, or ``None`` for all.
        """
        self._read_new()
        offsets = list(islice(self._open.offsets(at), most))
        return offsets[: bisect_left(offsets, self._halves.readable)]

    def newest_offset(self) -> int:
        """Return the highest half queue offset of an open transaction, or −1 if none is open."""
        self._read_new()
        last = self._open.last()
        return -1 if last is None else min(last, self._halves.readable - 1)

    def oldest(self) -> Transaction | None:
        """Return the transaction that began first, or ``None`` if none is open."""
        self._read_new()
        candidates = [self._open.oldest_recorded()]
        unrecorded = self._open.first_unrecorded()  # these are in the order in which they were stored
        half = self.read_half(unrecorded) if unrecorded is not None else None
        if half is not None:
            candidates.append(describe(half))
        return min((noted for noted in candidates if noted is not None), key=attrgetter("begun_ms"), default=None)

    def current_offset(self, offset: int, first: int) -> int | None:
        """Return the offset of a transaction's newest half message, or ``None`` if the transaction has ended."""
        self._read_new()
        if offset in self._open:
            return offset
        return self._copies.get(first)

    def is_at(self, offset: int, physical_offset: int) -> bool:
        """Return whether the half message at a queue offset is the record at a log offset.

        The record's own fields prove nothing: a client may have written it as the body of a message.
        """
        unit = self._halves.unit(offset)
        return unit is not None and unit[0] == physical_offset

    def read_half(self, offset: int) -> StoredRecord | None:
        """Return the half message at an offset, or ``None`` if it cannot be read."""
        return half_at(self._store, self._halves, offset)

    def read_open_half(self, offset: int, physical_offset: int) -> tuple[bytes, int] | None:
        """Return the raw record of an open half message, and the current time in milliseconds.

        Return ``None`` if the transaction is not open, or if it is being changed.
        """
        self._read_new()
        if offset not in self._open or offset in self._changing or not self.is_at(offset, physical_offset):
            return None
        data = self._store.bytes_at(physical_offset)
        return None if data is None else (data, self._store.clock.now_ms())

    def is_open(self, offset: int) -> bool:
        """Return whether the half message at an offset belongs to an open transaction."""
        self._read_new()
        return offset in self._open

    def get_recorded(self, offset: int) -> Transaction | None:
        """Return the open transaction at an offset, if :meth:`note` has recorded it."""
        return self._open.get(offset)

    def note(self, half: StoredRecord) -> Transaction:
        """Record the values of an open transaction from its half message."""
        noted = describe(half)
        self._open.record(half.queue_offset, noted)
        return noted

    def _read_new(self) -> None:
        """Add the half messages stored since the last call."""
        end = self._halves.committed
        if end > self._read_to:
            self._open.add(range(self._read_to, end))
            self._read_to = end

    # --- changes in progress ------------------------------------------------------------------
    def is_changing(self, offset: int) -> bool:
        """Return whether a transaction is being ended or copied."""
        return offset in self._changing

    def is_awaited(self, offset: int) -> bool:
        """Return whether a caller of :meth:`when_changed` is waiting for the current change."""
        return bool(self._changing[offset])

    def when_changed(self, offset: int, changed: Changed) -> None:
        """Call ``changed`` once the transaction's current change has been stored or has failed."""
        self._changing[offset].append(changed)

    def begin_change(self, offset: int) -> None:
        """Begin changing a transaction; :meth:`end_stored`, :meth:`copy_stored` or :meth:`cancel_change` must
        follow.
        """
        self._changing[offset] = []

    def op_message(self, offset: int) -> InnerMessage:
        """Return the op message for the half message at an offset."""
        return op_message(offset, self._store_host, self._store.clock.now_ms())

    def store_replacement(self, half: StoredRecord, message: InnerMessage, done: WhenStored) -> None:
        """Store a half message's replacement and its op message in one turn.

        The replacement comes first: after a crash between the two, both messages exist. ``done`` receives the position
        of the replacement and updates the table; after a failure the table is already up to date.

        :raises RefusedError: nothing can be stored now.
        """
        offset = half.queue_offset

        def stored(outcome: Stored | RefusedError) -> None:
            if isinstance(outcome, RefusedError):
                self.cancel_change(offset)
                done(outcome)
            else:
                done(places[0])

        self.begin_change(offset)
        try:
            places = self._turn.put_together((message, self.op_message(offset)), stored)
        except RefusedError:
            self.cancel_change(offset)
            raise

    def end_stored(self, offset: int) -> None:
        """Remove a transaction after its end has been stored."""
        self.remove(offset)
        self._end_change(offset)

    def copy_stored(self, offset: int, copy: int, noted: Transaction) -> None:
        """Record that a copy of a half message was stored at offset ``copy``."""
        self._read_new()
        self._open.pop(offset)
        self._open.record(copy, noted)
        self._copies.put(noted.first_offset, copy)
        self._end_change(offset)

    def cancel_change(self, offset: int) -> None:
        """End a change after nothing was stored."""
        self._end_change(offset)

    def _end_change(self, offset: int) -> None:
        for changed in self._changing.pop(offset):
            changed()

    def remove(self, offset: int) -> None:
        """Remove a transaction that has ended, or whose half message can no longer be read."""
        noted = self._open.pop(offset)
        if noted is not None:
            self._copies.pop(noted.first_offset)

    # --- progress -----------------------------------------------------------------------------
    def progress(self) -> tuple[int, int]:
        """Return the half queue and op queue offsets from which the broker must read after a restart."""
        self._read_new()
        done = next(self._open.offsets(), self._read_to)
        marks = self._marks
        marks.append((self._read_to, self._ops.committed))
        while len(marks) > 1 and marks[1][0] <= done:
            del marks[0]
        if len(marks) > MAX_TRANSACTION_MARKS:
            del marks[1::2]
        return done, marks[0][1]


def _start_offset(offsets: ConsumerOffsetManager, queue: ConsumeQueue) -> int:
    """Return the offset at which to start reading a queue: the group's offset, limited to the queue.

    An offset past the end was saved before the broker lost its last messages.
    """
    committed = offsets.query(TRANSACTION_GROUP, queue.topic, queue.queue_id)
    if committed > queue.committed:
        offsets.set_offset(TRANSACTION_GROUP, queue.topic, queue.queue_id, queue.committed)
    return min(max(committed, queue.min_offset()), queue.committed)
