"""How far a consumer group is."""

from __future__ import annotations

import msgspec

from cometmq.remoting.bodies import MessageQueue


class QueueProgress(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    queue: MessageQueue
    broker_offset: int
    """The offset that the next message will get."""
    consumer_offset: int
    """The offset that the group reads next."""
    last_timestamp: int
    """When the last message that the group read was stored, ms; 0 when it is gone."""

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return self.broker_offset - self.consumer_offset


class ConsumeProgress(msgspec.Struct, frozen=True):
    """How far a group is."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages that wait, in all queues."""
        return sum(queue.lag for queue in self.queues)
