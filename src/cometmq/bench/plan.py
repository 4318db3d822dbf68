"""A load: what is sent and how, and what came of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.bench.latencies import Latencies
from cometmq.errors import CometMQError

STAMP: Final = struct.Struct(">Qd")
"""The begin of a body of a round trip: the number of the message, and the monotonic time at which it was due."""
MAX_COUNT: Final = 1_000_000_000
MAX_ROUND_TRIPS: Final = 100_000_000
"""A round trip keeps a bit for each message, which says whether it has come."""


class BenchError(CometMQError):
    """The load cannot be run, or what is stored at the end is not what was sent."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load. It ends after ``count`` messages or after ``seconds``, whichever is given."""

    topic: str
    count: int | None
    seconds: float | None
    size: int = 1024
    rate: float | None = None
    """Messages a second of all connections; ``None`` for as many as possible."""
    connections: int = 1
    in_flight: int = 64
    """Requests without answer on each connection."""
    batch: int = 1
    """Messages in a request."""


@dataclass(slots=True)
class Progress:
    """The counts of a load that runs; views read them."""

    sent: int = 0
    """Messages that a broker has stored."""
    failed: int = 0
    received: int = 0
    body_bytes: int = 0
    first_failure: str = ""
    latencies: Latencies = field(default_factory=Latencies)
    recent: Latencies = field(default_factory=Latencies)
    """Those since a view looked last; it puts an empty one here."""
    begin: float = 0.0
    """Monotonic time of the begin, and of the end."""
    end: float = 0.0

    def took(self, seconds: float) -> None:
        """Count a latency."""
        self.latencies.add(seconds)
        self.recent.add(seconds)

    def fail(self, messages: int, error: BaseException) -> None:
        """Count messages that were not sent."""
        self.failed += messages
        self.first_failure = self.first_failure or str(error)

    def result(self, messages: int) -> dict[str, Any]:
        """Return rates and latencies of a load that has ended.

        :param messages: those that count: sent or received.
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


Look = Callable[[Progress], None]
"""Called while the load runs, a few times a second."""
