"""What the trace job found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from cometmq.client.trace_reader import MessageWay
from cometmq.quantity import quantity
from cometmq.spark.report_table import table


@dataclass(frozen=True, slots=True)
class Latency:
    """How messages of one topic came to one consumer group; all times in ms."""

    topic: str
    group: str
    messages: int
    consumed: int
    """Of them consumed with success at least once."""
    retried: int
    """Of them given to the group more than once."""
    wait_p50: int | None
    """Acknowledged to the producer → first call of a listener."""
    wait_p99: int | None
    p50: int | None
    """Sent → end of the first call that succeeded; none where no call did."""
    p90: int | None
    p99: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """A consumer, by group and host, with what its calls took for each message, in ms."""

    group: str
    host: str
    calls: int
    failed: int
    p50: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Latencies and slow consumers that a trace topic tells of."""

    source: str
    trace_topic: str
    messages: int
    unconsumed: int
    """Messages sent that no trace tells a consumption of."""
    latencies: tuple[Latency, ...]
    """By messages, most first."""
    slow: tuple[SlowConsumer, ...]
    """By p99, slowest first."""
    histogram: tuple[tuple[int, int], ...]
    """End to end: (least ms of a bucket that ends before twice that, messages)."""
    written_to: str | None
    """Directory of the joined rows."""
    way: MessageWay | None
    """Of the one message that was asked for."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"way": msgspec.to_builtins(self.way)}

    def render(self) -> str:
        """A summary to read in a terminal."""
        lines = [
            f"{quantity(self.messages, 'message')} in {self.trace_topic} of {self.source}, {self.unconsumed:,} of them "
            f"with no consumption told; {self.seconds:.1f} s"
        ]
        if self.latencies:
            lines += ["", "sent to consumed, ms:", ""]
            lines += table(
                ("<topic", "<group", ">messages", ">retried", ">wait p50", ">p50", ">p90", ">p99", ">max"),
                (
                    (of.topic, of.group, of.messages, of.retried, of.wait_p50, of.p50, of.p90, of.p99, of.max)
                    for of in self.latencies
                ),
            )
        if self.slow:
            lines += ["", "slowest consumers, ms of a call for each message:", ""]
            slow = ((of.group, of.host, of.calls, of.failed, of.p50, of.p99, of.max) for of in self.slow)
            lines += table(("<group", "<host", ">calls", ">failed", ">p50", ">p99", ">max"), slow)
        if self.written_to is not None:
            lines += ["", f"joined rows are in {self.written_to}"]
        return "\n".join(lines)
