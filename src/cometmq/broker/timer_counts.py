"""How many messages wait for a time of their own, and how many come and go a second (``TimerMessageStore``)."""

from __future__ import annotations

from typing import Final

from cometmq.broker.stats import TIMER_DEQUEUE_NUMS, TIMER_ENQUEUE_NUMS, BrokerStats
from cometmq.store.timer_unit import RECALL, TimerEntry


class TimerCounts:
    """Counts along the way of a waiting message.

    A recall counts one message less when it comes, as in Apache: one that takes back nothing does too.
    """

    def __init__(self, stats: BrokerStats, cluster: str) -> None:
        self._enqueued: Final = stats.item(TIMER_ENQUEUE_NUMS, cluster)
        self._dequeued: Final = stats.item(TIMER_DEQUEUE_NUMS, cluster)
        self._waiting = 0

    def waited_before(self, messages: int) -> None:
        """So many waited when the broker started."""
        self._waiting += messages

    def came(self, entry: TimerEntry) -> None:
        """A message, or a recall, came."""
        self._enqueued.add(1)
        self._waiting += -1 if entry.kind == RECALL else 1

    def taken(self, messages: int) -> None:
        """So many are due; negative for those that wait again, since they could not be stored."""
        self._waiting -= messages

    def delivered(self, messages: int) -> None:
        """So many stand in their topics."""
        self._dequeued.add(messages)

    def runtime_info(self) -> dict[str, str]:
        """Apache 5's keys of the runtime information (28); what happens a second is of the last minute."""
        return {
            "timerCongestNum": str(max(self._waiting, 0)),
            "timerEnqueueTps": f"{self._enqueued.seen(0).tps:.2f}",
            "timerDequeueTps": f"{self._dequeued.seen(0).tps:.2f}",
        }
