"""Half messages by real topic, as read from their records (``TransactionMetrics``)."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from cometmq.broker.limits import HALF_MESSAGES_PER_SLICE, MAX_HALF_MESSAGES_BY_TOPIC
from cometmq.broker.metrics.families import HALF_MESSAGES
from cometmq.broker.statistics.traffic import Traffic
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.message.names import TRANS_HALF_TOPIC
from cometmq.message.properties import REAL_TOPIC
from cometmq.metrics.family import Sample, Steps


class HalfMessages:
    """Counts open transactions by topic, reading each record once.

    If more than :data:`~cometmq.broker.limits.MAX_HALF_MESSAGES_BY_TOPIC` are open, all of them count for the half
    topic.
    """

    def __init__(self, transactions: OpenTransactions, traffic: Traffic) -> None:
        self._traffic = traffic
        self._transactions: Final = transactions
        self._topics: dict[int, str] = {}
        """Real topics by offset in the half queue."""
        self._seen: set[str] = set()
        """Topics that have ever had a half message; they report 0 if none is open."""

    def steps(self) -> Steps:
        """Yield the current samples."""
        if self._transactions.count > MAX_HALF_MESSAGES_BY_TOPIC:
            self._topics.clear()
            yield [(HALF_MESSAGES, (TRANS_HALF_TOPIC,), self._transactions.count)]
            return
        now_open = self._transactions.offsets()
        self._topics = {offset: self._topics[offset] for offset in now_open if offset in self._topics}
        unknown = (offset for offset in now_open if offset not in self._topics)
        while some := list(islice(unknown, HALF_MESSAGES_PER_SLICE)):
            for offset in some:
                half = self._transactions.read_half(offset)
                if half is not None:
                    self._topics[offset] = half.properties.get(REAL_TOPIC, TRANS_HALF_TOPIC)
            yield []
        counts = Counter(self._topics.values())
        self._seen |= counts.keys() | self._traffic.ended_transactions()
        samples: list[Sample] = [(HALF_MESSAGES, (topic,), counts[topic]) for topic in sorted(self._seen)]
        yield samples

    def keep(self, topics: set[str]) -> None:
        """Remove topics that no longer exist."""
        self._seen &= topics
