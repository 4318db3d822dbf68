"""LiteChoice: the messages of a lite topic for a pop.

Messages that are due again come first, then those that were never handed out. A damaged message is passed over. If it
was handed out before, it must be ended (``Choice.lost``); otherwise the group's offset would stay before it forever.
"""

from __future__ import annotations

from typing import NamedTuple

from cometmq.broker.context import BrokerContext
from cometmq.broker.lite.index import NO_ENTRY, LiteIndex
from cometmq.broker.lite.life_times import LiteLifeTimes
from cometmq.broker.lite.progress import GroupProgress
from cometmq.broker.pop.order import OrderedMessages
from cometmq.message.record import RecordError, StoredRecord, decode_record


class Choice(NamedTuple):
    """The messages for a pop."""

    offsets: list[int]
    records: list[bytes]
    next_offset: int
    """The offset after all messages that were handed out."""
    lost: list[int]
    """Offsets of messages that were handed out before and whose records are damaged or deleted."""


class LiteChoice:
    """Chooses the messages for pops."""

    def __init__(self, broker: BrokerContext, lives: LiteLifeTimes) -> None:
        self._live = broker.live
        self._store = broker.store
        self._lives = lives

    def choose(self, progress: GroupProgress, number: int, flight: OrderedMessages, most: int) -> Choice:
        """Return up to ``most`` messages of a lite topic that is not locked."""
        index = progress.index
        most_bytes = self._live.current.max_transfer_bytes_on_message_in_memory
        offsets: list[int] = []
        records: list[bytes] = []
        lost: list[int] = []
        size = 0
        again = sorted(flight.messages)
        next_offset = max(flight.next_offset, index.extent(number)[0])
        entry, at = NO_ENTRY, -1
        may_end = self._lives.may_end(index.parent)
        while len(offsets) < most and size < most_bytes:
            is_again = bool(again)
            offset = again.pop(0) if is_again else next_offset
            entry = index.following(entry) if entry != NO_ENTRY and offset == at + 1 else progress.entry(number, offset)
            at = offset
            record = None if entry == NO_ENTRY else self._store.readable_record_at(index.log_offset(entry))
            if record is None:
                is_lost = self._is_lost(index, entry)
                if is_again:
                    if is_lost or offset < index.extent(number)[0]:
                        lost.append(offset)
                    continue
                if not is_lost:
                    break  # the end, or a message that may not be read yet
                next_offset += 1
                continue
            if offsets and size + len(record) > most_bytes:
                break
            if may_end and not is_again and self._lives.is_over(record):
                break  # it is passed over when it is the first one
            offsets.append(offset)
            records.append(record)
            size += len(record)
            if not is_again:
                next_offset += 1
        return Choice(offsets, records, next_offset, lost)

    def _is_lost(self, index: LiteIndex, entry: int) -> bool:
        """Return whether the record of an entry is readable but damaged."""
        return entry != NO_ENTRY and index.log_offset(entry) < self._store.readable_end

    def record(self, progress: GroupProgress, number: int, offset: int) -> StoredRecord | None:
        """Return a message of a lite topic, or ``None`` if it is damaged or deleted."""
        entry = progress.entry(number, offset)
        data = None if entry == NO_ENTRY else self._store.record_at(progress.index.log_offset(entry))
        try:
            return None if data is None else decode_record(data)
        except RecordError:
            return None
