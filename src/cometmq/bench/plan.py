"""A benchmark load: its messages, rate and results."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.bench.latencies import Latencies
from cometmq.errors import CometMQError

STAMP: Final = struct.Struct(">Qd")
"""The struct at the start of a round-trip body: the message number, and the monotonic time at which it was due."""
MAX_COUNT: Final = 1_000_000_000
MAX_ROUND_TRIPS: Final = 100_000_000
"""Maximum number of messages in a round trip, which uses one bit per message to record its arrival."""


class BenchError(CometMQError):
    """The load cannot run, or the stored messages differ from the messages that were sent."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a load, which ends after ``count`` messages or after ``seconds``, whichever is set."""

    topic: str
    count: int | None
    seconds: float | None
    size: int = 1024
    rate: float | None = None
    """Messages per second over all connections; ``None`` means as many as possible."""
    connections: int = 1
    in_flight: int = 64
    """Number of requests in flight per connection."""
    batch: int = 1
    """Number of messages per request."""


@dataclass(slots=True)
class Progress:
    """The counters of a running load, for progress displays."""

    sent: int = 0
    """Number of messages that brokers have acknowledged."""
    failed: int = 0
    received: int = 0
    body_bytes: int = 0
    first_failure: str = ""
    latencies: Latencies = field(default_factory=Latencies)
    recent: Latencies = field(default_factory=Latencies)
    """The latencies since the last display. Each display replaces them with an empty histogram."""
    begin: float = 0.0
    """Monotonic start time of the load."""
    end: float = 0.0

    def count_latency(self, seconds: float) -> None:
        """Count a latency."""
        self.latencies.add(seconds)
        self.recent.add(seconds)

    def fail(self, messages: int, error: BaseException) -> None:
        """Count messages that were not sent."""
        self.failed += messages
        self.first_failure = self.first_failure or str(error)

    def result(self, messages: int) -> dict[str, Any]:
        """Return the rates and latencies of a finished load.

        :param messages: the number of messages sent or received.
        """
        seconds = max(self.end - self.begin, 1e-9)
        return {
            "messages": messages,
            "failed": self.failed,
            "seconds": round(seconds, 3),
            "messages_per_second": round(messages / seconds, 1),
            "mib_per_second": round(self.body_bytes / seconds / 2**20, 3),
            "latency_ms": self.latencies.summary_ms() if self.latencies.count else None,
        }


ShowProgress = Callable[[Progress], None]
"""A function that is called a few times per second while the load runs."""
