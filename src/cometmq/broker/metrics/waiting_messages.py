"""The number of messages with arbitrary delays that wait in each topic, recounted periodically (``TimerMetrics``)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.delay.waiting_messages import count_waiting
from cometmq.broker.statistics.traffic import Traffic
from cometmq.store.timer.waiting import WaitingOfTopic

_SNAPSHOT_SECONDS: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Bounds of ``rocketmq_timer_message_snapshot`` in seconds."""


class WaitingMessages:
    """The last count of delayed messages, updated with later arrivals and deliveries.

    A recalled message is included until the next count.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._counted: Mapping[str, WaitingOfTopic] = {}
        self._before: Mapping[str, int] = {}
        """For each topic, arrived minus delivered messages at the time of the last count."""

    async def count(self, timer: TimerMessageService) -> None:
        """Count the delayed messages in the timer log.

        :raises OSError: the timer log cannot be read.
        """
        before = self._traffic.waiting()
        self._counted = await count_waiting(timer, _SNAPSHOT_SECONDS)
        self._before = before

    def by_topic(self, topics: Container[str]) -> dict[str, int]:
        """Return the number of waiting messages for each topic, including topics that have none left."""
        now = self._traffic.waiting()
        found = {topic: counted.count for topic, counted in self._counted.items() if topic in topics}
        for topic, count in now.items():
            found[topic] = max(found.get(topic, 0) + count - self._before.get(topic, 0), 0)
        return found

    def due_within(self) -> dict[int, int]:
        """Return the number of messages in the last count that are due within each of several times, in seconds."""
        return {
            seconds: sum(counted.due_within[seconds] for counted in self._counted.values())
            for seconds in _SNAPSHOT_SECONDS
        }
