"""Brokers that answered slowly or not at all are left alone for a while (``MQFaultStrategy``).

The ladder is Apache's: an answer slower than the left column keeps the broker out of the selection
for the time in the right one; a failure counts as 30 s.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock

LATENCY_LADDER_MS: Final = ((15_000, 600_000), (3_000, 180_000), (2_000, 120_000), (1_000, 60_000), (550, 30_000))
"""(latency in ms at least, unavailable for ms), slowest first; faster answers cost nothing."""

FAILURE_LATENCY_MS: Final = 30_000.0
"""What a failed send counts as."""


def penalty_ms(latency_ms: float) -> int:
    """How long a broker that took ``latency_ms`` is avoided, in ms."""
    for least, unavailable in LATENCY_LADDER_MS:
        if latency_ms >= least:
            return unavailable
    return 0


class LatencyFault:
    """What is known about the speed of each broker (``LatencyFaultToleranceImpl``)."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._until: dict[str, tuple[float, float]] = {}
        """brokerName -> (monotonic seconds until which it is avoided, latency in ms)."""

    def note(self, broker_name: str, latency_ms: float) -> None:
        """Remember the time of one answer."""
        penalty = penalty_ms(latency_ms)
        if penalty or broker_name in self._until:
            self._until[broker_name] = (self._clock.monotonic() + penalty / 1000, latency_ms)

    def note_failure(self, broker_name: str) -> None:
        """Remember that a send failed: the broker is isolated for ten minutes."""
        self.note(broker_name, FAILURE_LATENCY_MS)

    def available(self, broker_name: str) -> bool:
        """Whether the broker may be chosen now."""
        known = self._until.get(broker_name)
        return known is None or self._clock.monotonic() >= known[0]

    def least_bad(self, broker_names: Collection[str]) -> str:
        """When none is available: the one that is free again soonest, then the fastest."""
        return min(broker_names, key=lambda name: (self._until.get(name, (0.0, 0.0)), name))
