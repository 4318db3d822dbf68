"""LiteLifeTimes: what becomes of messages of lite topics whose life times have ended.

A pop ends before an expired message. The lite topic is then checked as if a message had died: the expired messages at
its front are handed out to nobody and ended, together with their dead letters if the parent topic's attribute
``expired.messages`` asks for them. So a group's offset moves behind them in the same record of the POP log.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import STORED_AGAIN_BYTES
from cometmq.broker.lite.index import NO_ENTRY
from cometmq.broker.lite.progress import GroupProgress
from cometmq.broker.pop.order import OrderedMessages
from cometmq.broker.pull.expired_messages import end_of_life, expired_letter
from cometmq.broker.tables.topic_attributes import has_life_times, makes_dead_letters
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.message.record import StoredRecord

_AT_ONCE: Final = 64
"""Maximum number of expired messages that one check ends."""


class LiteLifeTimes:
    """Finds expired messages of lite topics."""

    def __init__(self, broker: BrokerContext) -> None:
        self._topics = broker.topics
        self._store = broker.store
        self._clock = broker.clock
        self._traffic = broker.stats.traffic

    def may_end(self, parent: str) -> bool:
        """Return whether messages of a parent topic may have life times."""
        config = self._topics.get(parent)
        return config is not None and has_life_times(config.attributes)

    def makes_dead_letters(self, parent: str) -> bool:
        """Return whether expired messages of a parent topic become dead letters."""
        config = self._topics.get(parent)
        return config is not None and makes_dead_letters(config.attributes)

    def is_over(self, record: bytes | memoryview) -> bool:
        """Return whether the life of a message has ended."""
        end_ms = end_of_life(memoryview(record))
        return end_ms is not None and end_ms <= self._clock.now_ms()

    def ended(self, progress: GroupProgress, number: int, flight: OrderedMessages) -> list[int]:
        """Return the offsets of some expired messages that a group would get next: due ones or, if nothing is handed
        out, those at the front.
        """
        if not self.may_end(progress.index.parent):
            return []
        now_ms = self._clock.now_ms()
        first = max(flight.next_offset, progress.index.extent(number)[0])
        due = [offset for offset, handed in sorted(flight.messages.items()) if handed.due <= now_ms]
        found: list[int] = []
        size = 0
        for offset in due if flight.messages else range(first, first + _AT_ONCE):
            entry = progress.entry(number, offset)
            record = None if entry == NO_ENTRY else self._store.readable_record_at(progress.index.log_offset(entry))
            if record is not None and self.is_over(record):
                found.append(offset)
                size += len(record)
            elif not flight.messages:
                break
            if size >= STORED_AGAIN_BYTES:
                break
        return found

    def passed(self, progress: GroupProgress, count: int) -> None:
        """Count expired messages that a group has passed over."""
        if self._traffic is not None and count:
            self._traffic.expired(progress.index.parent, progress.group, count)

    @staticmethod
    def letter(record: StoredRecord, topic: str) -> InnerMessage:
        """Return the dead letter for an expired message."""
        return expired_letter(record, topic, record.topic)
