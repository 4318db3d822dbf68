"""The messages that one pop collects from several queues."""

from __future__ import annotations

from cometmq.broker.pop.popped_records import Chunks
from cometmq.broker.pop.reads import Place
from cometmq.store.message_store import ConsumeQueue


class PopResult:
    """The messages that one pop has collected so far."""

    __slots__ = (
        *("chunks", "count", "is_cut", "moves", "not_loaded", "offsets", "order_counts", "pop_time", "popped", "rest"),
        *("retries", "retries_size", "size", "skipped", "starts"),
    )

    def __init__(self, pop_time: int) -> None:
        self.pop_time = pop_time
        self.chunks: Chunks = []
        self.count = 0
        self.size = 0
        self.retries = self.retries_size = 0
        """Number and total size of the messages from a retry topic."""
        self.rest = 0
        """Number of messages that are left in the queues that were read."""
        self.skipped = 0
        """Number of messages that the filter rejected."""
        self.is_cut = False
        """True if some messages were left unread; the next attempt continues after those that the filter rejected."""
        self.not_loaded: list[Place] = []
        """Places from which archived messages must be loaded before they can be popped."""
        self.starts: list[str] = []
        self.offsets: list[str] = []
        self.order_counts: list[str] = []
        self.moves: list[tuple[str, int, int, int]] = []
        """For each queue: topic, queue ID, and the group's offset before and after the pop."""
        self.popped: list[tuple[str, int, list[int]]] = []
        """For each queue of a pop with an owner: topic, queue ID, and the offsets of the messages."""

    def skip(self, begin: int, end: int, queue: ConsumeQueue) -> None:
        """Count messages in a queue that the filter rejected."""
        self.skipped += end - begin
        self.is_cut |= begin < end < queue.max_offset()
