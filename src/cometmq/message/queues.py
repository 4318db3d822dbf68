"""The name of a queue: its topic, its broker and its number."""

from __future__ import annotations

from typing import NamedTuple


class Queue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"
