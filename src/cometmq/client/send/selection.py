"""Selects the queue for a message: the caller's choice, or the next queue that is not on a failing broker.

``MessageQueueSelector``, ``TopicPublishInfo`` and ``MQFaultStrategy`` of Java. The producer has two tables, Apache's by
default: the first has response times, the second penalties. A broker whose answer takes as long as an entry of the
first table is avoided for the time in the second. A failure counts as 30 s.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.ids import consistent_hash, java_hash
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue

LATENCY_MAX_MS: Final = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
NOT_AVAILABLE_DURATION_MS: Final = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""The default tables of Java's producer (``latencyMax`` and ``notAvailableDuration``), in milliseconds."""

FAILURE_LATENCY_MS: Final = 30_000.0
"""The response time that stands for a failed send."""


class LatencyLadder(msgspec.Struct, frozen=True):
    """Two ascending tables of times in milliseconds, of equal length.

    :raises ValueError: the tables differ in length, or do not ascend.
    """

    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS

    def __post_init__(self) -> None:
        tables = (self.latency_max_ms, self.not_available_duration_ms)
        if len(self.latency_max_ms) != len(self.not_available_duration_ms):
            raise ValueError("latency_max_ms and not_available_duration_ms must have the same length")
        if any(list(table) != sorted(table) or min(table, default=0) < 0 for table in tables):
            raise ValueError("latency_max_ms and not_available_duration_ms must be ascending and 0 or greater")

    def penalty_ms(self, latency_ms: float) -> int:
        """Return the time in milliseconds for which a broker is avoided after a response that took ``latency_ms``."""
        reached = bisect_right(self.latency_max_ms, latency_ms)
        return self.not_available_duration_ms[reached - 1] if reached else 0


class LatencyFault:
    """The speed of each broker (``LatencyFaultToleranceImpl``)."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, ladder: LatencyLadder | None = None) -> None:
        self._clock = clock
        self._ladder = ladder or LatencyLadder()
        self._until: dict[str, tuple[float, float]] = {}
        """By broker name: the monotonic time until which the broker is avoided, and its latency in milliseconds."""
        self.unreachable: set[str] = set()
        """Brokers that are avoided until they respond again."""

    def note(self, broker_name: str, latency_ms: float) -> None:
        """Record the time of a response."""
        penalty = self._ladder.penalty_ms(latency_ms)
        if penalty or broker_name in self._until:
            self._until[broker_name] = (self._clock.monotonic() + penalty / 1000, latency_ms)

    def note_failure(self, broker_name: str) -> None:
        """Record a failed send; with Java's tables, the broker is then avoided for ten minutes."""
        self.note(broker_name, FAILURE_LATENCY_MS)

    def note_unreachable(self, broker_name: str) -> None:
        """Avoid a broker until :meth:`note_reachable` is called."""
        self.unreachable.add(broker_name)

    def note_reachable(self, broker_name: str) -> None:
        """Stop avoiding a broker that responds again."""
        self.unreachable.discard(broker_name)
        self._until.pop(broker_name, None)

    def available(self, broker_name: str) -> bool:
        """Return whether the broker can be chosen now."""
        if broker_name in self.unreachable:
            return False
        known = self._until.get(broker_name)
        return known is None or self._clock.monotonic() >= known[0]

    def best_unavailable(self, broker_names: Collection[str]) -> str:
        """Return the best broker if none is available: reachable ones first, then the one available soonest."""
        return min(broker_names, key=lambda name: (name in self.unreachable, self._until.get(name, (0.0, 0.0)), name))


MIN_INTERVAL_S: Final = 0.05
"""Minimum interval between two rounds, so that no configuration causes a busy loop."""


class ReachabilityDetector:
    """Probes a producer's unreachable brokers at intervals (5.x: ``startDetectorEnable``).

    A task runs only while brokers are unreachable.

    :param interval_s: seconds between two rounds.
    :param timeout_s: seconds that a broker has to answer.
    """

    def __init__(self, instance: ClientInstance, fault: LatencyFault, interval_s: float, timeout_s: float) -> None:
        self._instance = instance
        self._fault = fault
        self._interval_s = max(interval_s, MIN_INTERVAL_S)
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None

    def watch(self, broker_name: str) -> None:
        """Avoid a broker until it responds."""
        self._fault.note_unreachable(broker_name)
        if self._task is None or self._task.done():
            self._task = self._instance.spawn(self._run())

    async def _run(self) -> None:
        while self._fault.unreachable:
            await self._instance.clock.sleep(self._interval_s)
            await asyncio.gather(*(self._ask(name) for name in sorted(self._fault.unreachable)))

    async def _ask(self, broker_name: str) -> None:
        routes = self._instance.routes
        address = routes.brokers.master(broker_name)
        if address is None or not await self._instance.is_answering(address, self._timeout_s):
            return
        if not routes.can_write_to(broker_name):
            await routes.refresh_all()  # the nameservers may have forgotten the broker in the meantime
        if routes.can_write_to(broker_name):
            self._fault.note_reachable(broker_name)


QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""A function that selects one of a topic's write queues for a message."""


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue for a sharding key, as Java's ``SelectMessageQueueByHash`` does."""
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def queue_of_lite_topic(queues: Sequence[MessageQueue], lite_topic: str) -> MessageQueue:
    """Return the queue for a lite topic, as Apache's proxy does; all its messages are stored by one broker."""
    return queues[consistent_hash(java_hash(lite_topic), len(queues))]


def by_sharding_key(sharding_key: str) -> QueueSelector:
    """Return a selector that sends all messages with the same key to one queue while the queues do not change."""

    def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        return queue_of_key(queues, sharding_key)

    return select


class RoundRobin:
    """Selects the queues in turn, avoiding brokers that just failed or are slow (``MQFaultStrategy``).

    :param fault: the speed of brokers; ``None`` avoids only the broker that failed last.
    """

    def __init__(self, fault: LatencyFault | None = None) -> None:
        self._fault = fault
        self._next: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], last_broker: str | None = None) -> MessageQueue:
        """Return the next queue of ``topic``, if possible on a different broker from ``last_broker``."""
        at = self._next.get(topic)
        if at is None:
            at = random.randrange(len(queues))
        self._next[topic] = at + 1
        if self._fault is not None:
            return self._choose_available(queues, at, last_broker, self._fault)
        if last_broker is not None:
            for step in range(len(queues)):
                queue = queues[(at + step) % len(queues)]
                if queue.broker_name != last_broker:
                    return queue
        return queues[at % len(queues)]

    @staticmethod
    def _choose_available(
        queues: Sequence[MessageQueue], at: int, last_broker: str | None, fault: LatencyFault
    ) -> MessageQueue:
        second_best: MessageQueue | None = None
        for step in range(len(queues)):
            queue = queues[(at + step) % len(queues)]
            if fault.available(queue.broker_name):
                if queue.broker_name != last_broker:
                    return queue
                second_best = second_best or queue
        if second_best is not None:
            return second_best
        name = fault.best_unavailable({queue.broker_name for queue in queues})
        candidates = [queue for queue in queues if queue.broker_name == name]
        return candidates[at % len(candidates)]
