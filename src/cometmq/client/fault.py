"""Brokers that answered slowly or not at all are left alone for a while (``MQFaultStrategy``).

The ladder is Apache's unless the producer is given another one: an answer slower than an entry of the
first table keeps the broker out of the selection for the time in the second; a failure counts as 30 s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from typing import Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock

LATENCY_MAX_MS: Final = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
NOT_AVAILABLE_DURATION_MS: Final = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""``latencyMax`` and ``notAvailableDuration`` of Java."""

FAILURE_LATENCY_MS: Final = 30_000.0
"""What a failed send counts as."""


class LatencyLadder(msgspec.Struct, frozen=True):
    """How slow is how bad: two tables of ms, ascending, of one length.

    :raises ValueError: they are not.
    """

    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS

    def __post_init__(self) -> None:
        tables = (self.latency_max_ms, self.not_available_duration_ms)
        if len(self.latency_max_ms) != len(self.not_available_duration_ms):
            raise ValueError("latency_max_ms and not_available_duration_ms must have as many entries as each other")
        if any(list(table) != sorted(table) or min(table, default=0) < 0 for table in tables):
            raise ValueError("latency_max_ms and not_available_duration_ms ascend from 0 or more")

    def penalty_ms(self, latency_ms: float) -> int:
        """How long a broker that took ``latency_ms`` is avoided, in ms."""
        reached = bisect_right(self.latency_max_ms, latency_ms)
        return self.not_available_duration_ms[reached - 1] if reached else 0


class LatencyFault:
    """What is known about the speed of each broker (``LatencyFaultToleranceImpl``)."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, ladder: LatencyLadder | None = None) -> None:
        self._clock = clock
        self._ladder = ladder or LatencyLadder()
        self._until: dict[str, tuple[float, float]] = {}
        """brokerName -> (monotonic seconds until which it is avoided, latency in ms)."""
        self.unreachable: set[str] = set()
        """Brokers that are avoided until they answer again, however long that takes."""

    def note(self, broker_name: str, latency_ms: float) -> None:
        """Remember the time of one answer."""
        penalty = self._ladder.penalty_ms(latency_ms)
        if penalty or broker_name in self._until:
            self._until[broker_name] = (self._clock.monotonic() + penalty / 1000, latency_ms)

    def note_failure(self, broker_name: str) -> None:
        """Remember that a send failed: the broker is isolated, with Java's tables for ten minutes."""
        self.note(broker_name, FAILURE_LATENCY_MS)

    def note_unreachable(self, broker_name: str) -> None:
        """Avoid a broker until :meth:`note_reachable`."""
        self.unreachable.add(broker_name)

    def note_reachable(self, broker_name: str) -> None:
        """The broker answers: whatever isolated it is over."""
        self.unreachable.discard(broker_name)
        self._until.pop(broker_name, None)

    def available(self, broker_name: str) -> bool:
        """Whether the broker may be chosen now."""
        if broker_name in self.unreachable:
            return False
        known = self._until.get(broker_name)
        return known is None or self._clock.monotonic() >= known[0]

    def least_bad(self, broker_names: Collection[str]) -> str:
        """When none is available: one that answers, then the one that is free again soonest, then the fastest."""
        return min(broker_names, key=lambda name: (name in self.unreachable, self._until.get(name, (0.0, 0.0)), name))
