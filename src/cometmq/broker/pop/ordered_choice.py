"""OrderedChoice: selects the messages for an ordered pop, in queue order or in message group order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.limits import MAX_ORDERED_MESSAGES, MAX_POP_MESSAGES, POP_READS_MAX
from cometmq.broker.pop.order import OrderedMessages
from cometmq.broker.pop.popped_records import Chunks, iterate_records, message_group, record_offsets
from cometmq.broker.pop.reads import NotLoadedError, Place, PopReads
from cometmq.broker.pull.filters import MessageFilter
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, GetResult


class OrderedChoice:
    """Chooses the messages for a pop: first those to be redelivered, then new ones.

    :param group: the group that pops.
    :param most: maximum number of messages, with at most ``most_bytes`` together; a single message may be larger.
    """

    def __init__(
        self, reads: PopReads, queue: ConsumeQueue, ordered: OrderedMessages, *, group: str, most: int, most_bytes: int
    ) -> None:
        self._reads = reads
        self._group = group
        self._queue = queue
        self._ordered = ordered
        self._most = most
        self._most_bytes = most_bytes
        self._size = 0
        self.offsets: list[int] = []
        self.chunks: Chunks = []
        self.waiting: list[int] = []
        """New messages that are waiting for their message group."""
        self.not_begun: list[int] = []
        """Messages whose last delivery does not count any more, see :meth:`OrderedMessages.not_begun`."""
        self.not_loaded: list[Place] = []
        """Archived messages that must be loaded before this choice can go on."""
        self.firsts: set[int] = set()
        """The messages that are first in their message group or, in queue order, in the queue."""
        self.lost: list[int] = []
        """Messages that were handed out, and whose life times have ended or that neither the store nor the archive has
        any longer.
        """
        self.next_offset = ordered.next_offset
        """The offset after all messages that were chosen or are waiting."""

    @property
    def _is_full(self) -> bool:
        return len(self.offsets) >= self._most or self._size >= self._most_bytes

    def by_queue(self, wanted: MessageFilter) -> None:
        """Choose messages in queue order; the queue must not be locked."""
        with self._until_not_loaded():
            self._choose_by_queue(wanted)
            self.not_begun = self._ordered.not_begun(self.offsets)

    def by_group(self, wanted: MessageFilter, now_ms: int, attempt_id: str) -> None:
        """Choose messages from all message groups that are not locked."""
        with self._until_not_loaded():
            self._choose_by_group(wanted, now_ms, attempt_id)
            self.not_begun = self._ordered.not_begun(self.offsets, self._group_at)

    @contextmanager
    def _until_not_loaded(self) -> Iterator[None]:
        """End a choice at the first message that is not loaded: those before it are handed out, and none after it."""
        try:
            yield
        except NotLoadedError as missing:
            self.not_loaded.append(missing.place)

    def _choose_by_queue(self, wanted: MessageFilter) -> None:
        self.firsts = {self._ordered.committed}
        if not self._choose_again(set()):
            return
        for _ in range(POP_READS_MAX):
            if self._is_full or self.next_offset >= self._queue.max_offset():
                return
            result = self._read(wanted, self._most - len(self.offsets), self._most_bytes - self._size)
            self.next_offset = result.next_begin_offset
            if result.status is GetMessageStatus.FOUND:
                self.offsets += record_offsets(result.chunks)
                self.chunks += result.chunks
                return

    def _choose_by_group(self, wanted: MessageFilter, now_ms: int, attempt_id: str) -> None:
        ordered = self._ordered
        locked = ordered.find_locked_groups(now_ms, attempt_id, self._group_at)
        if not self._choose_again(locked, by_group=True):
            return
        misses, again = 0, len(self.offsets)
        while not self._is_full and misses < POP_READS_MAX and self.next_offset < self._queue.max_offset():
            room = MAX_ORDERED_MESSAGES - len(ordered.messages) - (len(self.offsets) - again) - len(self.waiting)
            if room <= 0:
                return
            result = self._read(wanted, min(room, MAX_POP_MESSAGES), self._most_bytes)
            if result.status is not GetMessageStatus.FOUND:
                misses += 1
            elif not self._choose_new(result, locked):
                return
            self.next_offset = result.next_begin_offset

    def _choose_again(self, locked: set[str], *, by_group: bool = False) -> bool:
        """Choose messages that are waiting or due for redelivery; return False if no new messages may follow."""
        goes_on = True
        begun = set(locked)
        for offset in sorted(self._ordered.messages):
            if self._is_full:
                return False
            if by_group and (group := self._group_at(offset)) not in begun:
                begun.add(group)
                self.firsts.add(offset)
            elif by_group and group in locked:
                continue
            chunks, is_over = self._reads.get_again(self._queue, offset, self._group)
            if is_over or (not chunks and offset < self._queue.min_offset()):
                self.lost.append(offset)
                continue
            if not chunks:  # this message cannot be read
                goes_on = False
                continue
            if not self._choose(offset, chunks):
                return False
        return goes_on

    def _choose_new(self, result: GetResult, locked: set[str]) -> bool:
        """Choose new messages or let them wait; return False at the first message that does not fit."""
        for offset, record in iterate_records(result.chunks):
            group = self._ordered.groups[offset] = message_group(record)
            if group in locked:
                self.waiting.append(offset)
            elif self._is_full or not self._choose(offset, [record]):
                self.next_offset = offset
                return False
        return True

    def _choose(self, offset: int, chunks: Chunks) -> bool:
        size = sum(map(len, chunks))
        if self.offsets and self._size + size > self._most_bytes:
            return False
        self.offsets.append(offset)
        self.chunks += chunks
        self._size += size
        return True

    def _read(self, wanted: MessageFilter, most: int, most_bytes: int) -> GetResult:
        return self._reads.living(self._queue, self.next_offset, most, wanted, most_bytes, self._group)

    def _group_at(self, offset: int) -> str:
        return self._reads.message_group(self._queue, self._ordered.groups, offset)
