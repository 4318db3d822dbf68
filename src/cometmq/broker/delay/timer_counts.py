"""Counters for messages with arbitrary delays (``TimerMetrics``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.statistics.stats import TIMER_DEQUEUE_NUMS, TIMER_ENQUEUE_NUMS
from cometmq.broker.statistics.traffic import Event
from cometmq.store.timer.unit import RECALL, TimerEntry


class TimerCounts:
    """Counts messages with arbitrary delays. As in Apache's broker, each recall decreases ``waiting`` by one."""

    def __init__(self, broker: BrokerContext) -> None:
        cluster = broker.config.broker_cluster_name
        self._enqueued: Final = broker.stats.item(TIMER_ENQUEUE_NUMS, cluster)
        self._dequeued: Final = broker.stats.item(TIMER_DEQUEUE_NUMS, cluster)
        self._traffic = broker.stats.traffic
        self.waiting = 0

    def arrived(self, entry: TimerEntry) -> None:
        """Count a message or recall that has arrived."""
        self._enqueued.add(1)
        self.waiting += -1 if entry.kind == RECALL else 1

    def delivered(self, messages: int, topics: Iterable[str]) -> None:
        """Count messages that have been stored in their topics; the caller has already subtracted them from
        ``waiting``.
        """
        self._dequeued.add(messages)
        if self._traffic is not None:
            for topic in topics:
                self._traffic.count(Event.TIMER_OUT, topic)

    def runtime_info(self) -> dict[str, str]:
        """Return runtime information: the number of waiting messages, and arrivals and deliveries per second in the
        last minute.
        """
        return {
            "timerCongestNum": str(max(self.waiting, 0)),
            "timerEnqueueTps": f"{self._enqueued.seen(0).tps:.2f}",
            "timerDequeueTps": f"{self._dequeued.seen(0).tps:.2f}",
        }
