"""What the skew job found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

BY: Final = ("keys", "shardingKey", "tags")
"""What may count as a message's key; of several KEYS each counts."""
TOP: Final = 20
"""Hot keys that are named unless more are asked for."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What lies in one queue."""

    broker: str
    queue_id: int
    messages: int
    bytes: int
    """Stored records, with headers and properties."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that many messages have."""

    topic: str
    key: str
    messages: int
    bytes: int
    share: float
    """Part of the topic's messages, 0 to 1."""
    queues: int
    """In how many queues they lie."""


@dataclass(frozen=True, slots=True)
class TopicSkew:
    """How a topic's messages lie in its queues."""

    topic: str
    messages: int
    bytes: int
    keys: int
    """Different keys."""
    peak_per_s: float
    """Messages a second in the busiest minute of store time."""
    max_to_mean: float
    max_to_mean_bytes: float
    gini: float
    gini_bytes: float
    recommended_queues: int
    notes: tuple[str, ...]
    queues: tuple[QueueLoad, ...]


@dataclass(frozen=True, slots=True)
class SkewReport:
    """Hot keys, and queues that hold more than others."""

    source: str
    by: str
    """What counts as a message's key: keys, shardingKey or tags."""
    topics: tuple[TopicSkew, ...]
    hot_keys: tuple[HotKey, ...]
    """Of all topics, by messages, most first."""
    seconds: float

    @property
    def messages(self) -> int:
        """Of all topics."""
        return sum(of.messages for of in self.topics)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"messages": self.messages}

    def render(self) -> str:
        """A summary to read in a terminal of 100 columns."""
        lines = [f"{self.messages:,} messages of {len(self.topics)} topics of {self.source}; {self.seconds:.1f} s", ""]
        lines.append(
            f"  {'topic':<28} {'messages':>12} {'peak/s':>9} {'queues':>6} {'max/mean':>8} {'gini':>5} {'in bytes':>8} "
            f"{'should be':>9}"
        )
        for of in self.topics:
            lines.append(
                f"  {of.topic:<28} {of.messages:>12,} {of.peak_per_s:>9,.1f} {len(of.queues):>6} "
                f"{of.max_to_mean:>8.2f} {of.gini:>5.2f} {of.gini_bytes:>8.2f} {of.recommended_queues:>9}"
            )
            lines += [f"    {note}" for note in of.notes]
        for of in self.topics:
            lines += ["", f"  {of.topic:<40} {'queue':>5} {'messages':>14} {'share':>7} {'bytes':>16}"]
            lines += [
                f"  {queue.broker:<40} {queue.queue_id:>5} {queue.messages:>14,} "
                f"{queue.messages / of.messages if of.messages else 0:>7.1%} {queue.bytes:>16,}"
                for queue in of.queues
            ]
        if self.hot_keys:
            lines += ["", f"  {'hot ' + self.by:<40} {'topic':<20} {'messages':>12} {'share':>7} {'queues':>6}"]
            lines += [
                f"  {hot.key:<40} {hot.topic:<20} {hot.messages:>12,} {hot.share:>7.1%} {hot.queues:>6}"
                for hot in self.hot_keys
            ]
        return "\n".join(lines)
