"""ReadableEnd: the part of the log that may be read while later messages may still vanish (failover).

A broker of a failover set stores messages before the other members of its set have them. Until then they may vanish at
the next failover, and nobody may read them. The *readable end* is the log offset up to which messages may be read; it
only rises. A message is readable if its whole record is before it.

Each queue has two ends: ``committed``, up to which units are stored, and ``readable``. Without failover, both are
always equal, and there is no :class:`ReadableEnd`. With failover, each commit is remembered with the ends of its
queues, until :meth:`ReadableEnd.confirm` moves the queues' readable ends.

When a store is opened, the log after the readable end is read once, to find the queues with messages there. If no
record begins at the readable end, nothing is readable until an offset is confirmed at which one begins, or the log
ends. So 0 means that nobody knows the readable end yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from cometmq.store.errors import StoreClosedError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import NOTHING_KNOWN, LogReader
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, LogRecord, first_record
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT_DTYPE, ConsumeQueue
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable

_UNITS: Final = 4_096
"""Number of units that are compared with the readable end in one step."""


class _Held(NamedTuple):
    """A commit whose messages are not readable yet."""

    end: int
    """The log offset after its last record."""
    queues: list[tuple[ConsumeQueue, int, int]]
    """Its queues, each with its life and its end at that time."""


class ReadableEnd:
    """The readable end of one store's log, and the queues that have messages after it.

    It is a :class:`~cometmq.store.retention.LogHolder`: no message is deleted before it was readable.

    :param offset: the log offset up to which messages may be read at first.
    """

    name = "other members of the set, which do not have all its messages yet"

    def __init__(self, log: CommitLog, queues: ConsumeQueueTable, offset: int) -> None:
        self._log = log
        self._queues = queues
        self.offset = 0
        """The log offset up to which messages may be read."""
        self._held: deque[_Held] = deque()
        self._held_from = 0
        """A log offset up to which nothing is held."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._is_given_up = False
        self._is_unknown = log.position > log.min_offset
        """True while no message that was stored before the opening is readable."""
        if self._is_unknown:
            for queue in self._all():
                queue.readable = queue.min_logical
        self.confirm(offset)

    def _all(self) -> Iterable[ConsumeQueue]:
        return [queue for queues in self._queues.by_topic.values() for queue in queues.values()]

    def stored(self, end: int, touched: Iterable[ConsumeQueue]) -> None:
        """Remember a commit that ends at log offset ``end``."""
        self._held.append(_Held(end, [(queue, queue.life, queue.committed) for queue in touched]))

    def confirm(self, offset: int) -> list[ConsumeQueue]:
        """Make the messages up to a log offset readable, and return the queues that have more readable messages.

        An offset after the end of the log counts as the end, and one before the readable end changes nothing.
        """
        offset = min(offset, self._log.position)
        if offset <= self.offset or (self._is_unknown and not self._open_at(offset)):
            return []
        self.offset = offset
        held = self._held
        moved: dict[ConsumeQueue, None] = {}
        while held and held[0].end <= offset:
            self._held_from, queues = held.popleft()
            for queue, life, end in queues:
                if queue.life == life and end > queue.readable:
                    queue.readable = end
                    moved[queue] = None
        if held and offset > self._held_from:  # a part of a commit
            self._held_from = offset
            for queue, life, end in held[0].queues:
                if queue.life == life and (end := _end_of_records_before(queue, end, offset)) > queue.readable:
                    queue.readable = end
                    moved[queue] = None
        self._wake()
        return list(moved)

    async def reached(self, offset: int) -> None:
        """Wait until messages may be read up to a log offset.

        :raises StoreError: they will not be, since :meth:`give_up` was called.
        """
        if self.offset < offset:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, reached))
            self._wake()
            await reached

    def give_up(self) -> None:
        """Let :meth:`reached` raise an error, since nothing is confirmed any more."""
        self._is_given_up = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for offset, reached in waiting:
            if reached.done():
                continue
            if offset <= self.offset:
                reached.set_result(None)
            elif self._is_given_up:
                reached.set_exception(
                    StoreClosedError("this broker left its part in the set before the set had all messages")
                )
            else:
                self._waiting.append((offset, reached))

    def needed_from(self) -> int:
        """Return the readable end."""
        return self.offset

    def let_go(self, end: int, /) -> None:
        """Do nothing, since the set's master moves the readable end as soon as it can anyway."""

    def _open_at(self, offset: int) -> bool:
        """Set the readable ends of all queues for the first time; return False if no record begins at ``offset``."""
        log = self._log
        if offset <= log.min_offset or (offset < log.position and first_record(log, offset) is None):
            return False
        first: dict[ConsumeQueue, int] = {}
        for record in LogReader(log, offset, NOTHING_KNOWN, check_crc=False, until=log.position):
            if isinstance(record, LogRecord) and not record.sys_flag & NO_QUEUE_OFFSET:
                queue = self._queues.get(record.topic, record.queue_id)
                if queue is not None and queue not in first and _has(queue, record):
                    first[queue] = record.queue_offset
        self._is_unknown = False
        self._held.clear()
        self._held_from = offset
        if first:
            self.stored(log.position, first)
        for queue in self._all():
            end = first.get(queue, queue.committed)
            queue.readable = max(queue.min_logical, min(end, queue.committed))
        return True


def _has(queue: ConsumeQueue, record: LogRecord) -> bool:
    """Return whether the queue contains the record; it does not if its topic was deleted since then."""
    unit = queue.unit(record.queue_offset)
    return unit is not None and unit[0] == record.offset


def _end_of_records_before(queue: ConsumeQueue, end: int, log_offset: int) -> int:
    """Return the queue offset after the last message before ``end`` whose record ends at or before ``log_offset``.

    A blank unit belongs to the message after it.
    """
    offset = found = queue.readable
    while offset < end:
        units = np.frombuffer(queue.units(offset, min(_UNITS, end - offset), stored=True), UNIT_DTYPE)
        if not len(units):
            break
        sizes = units["size"].astype(np.int64)
        real = np.flatnonzero(sizes != BLANK_SIZE)
        ends = units["offset"].astype(np.int64)[real] + sizes[real]
        later = np.flatnonzero(ends > log_offset)
        readable = real[: later[0]] if len(later) else real
        if len(readable):
            found = offset + int(readable[-1]) + 1
        if len(later):
            break
        offset += len(units)
    return found
