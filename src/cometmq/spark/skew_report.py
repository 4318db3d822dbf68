"""What the skew job found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from cometmq.quantity import quantity
from cometmq.spark.report_table import table

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
        """A summary to read in a terminal."""
        lines = [
            f"{quantity(self.messages, 'message')} of {quantity(len(self.topics), 'topic')} of {self.source}; "
            f"{self.seconds:.1f} s",
            "",
        ]
        lines += table(
            ("<topic", ">messages", ">peak/s", ">queues", ">max/mean", ">gini", ">in bytes", ">should be"),
            (
                (
                    of.topic,
                    of.messages,
                    f"{of.peak_per_s:,.1f}",
                    len(of.queues),
                    f"{of.max_to_mean:.2f}",
                    f"{of.gini:.2f}",
                    f"{of.gini_bytes:.2f}",
                    of.recommended_queues,
                )
                for of in self.topics
            ),
        )
        lines += [f"    {of.topic}: {note}" for of in self.topics for note in of.notes]
        for of in self.topics:
            rows = (
                (
                    queue.broker,
                    queue.queue_id,
                    queue.messages,
                    f"{queue.messages / of.messages if of.messages else 0:.1%}",
                    queue.bytes,
                )
                for queue in of.queues
            )
            lines += ["", *table((f"<{of.topic}", ">queue", ">messages", ">share", ">bytes"), rows)]
        if self.hot_keys:
            hot_keys = ((hot.key, hot.topic, hot.messages, f"{hot.share:.1%}", hot.queues) for hot in self.hot_keys)
            heads = (f"<hot {self.by}", "<topic", ">messages", ">share", ">queues")
            lines += ["", *table(heads, hot_keys)]
        return "\n".join(lines)
