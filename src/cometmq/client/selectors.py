"""Ways to choose the queue of a message (``MessageQueueSelector``, ``TopicPublishInfo``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cometmq.client.fault import LatencyFault
from cometmq.message.ids import java_hash
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Given the write queues of the topic (sorted by broker and number) and the message, one of them."""


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue of a sharding key, the same that Java's ``SelectMessageQueueByHash`` takes for that string."""
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def by_sharding_key(sharding_key: str) -> QueueSelector:
    """A selector that keeps all messages with one key in one queue, as long as the queues do not change."""

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queue_of_key(queues, sharding_key)

    return select


class RoundRobin:
    """One queue after the other, leaving out brokers that just failed, or are slow (``MQFaultStrategy``).

    :param fault: what is known of slow brokers; ``None`` leaves only the last failed one out.
    """

    def __init__(self, fault: LatencyFault | None = None) -> None:
        self._fault = fault
        self._next: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], last_broker: str | None = None) -> MessageQueue:
        """The next queue of ``topic``, if possible not of ``last_broker``."""
        at = self._next.get(topic)
        if at is None:
            at = random.randrange(len(queues))
        self._next[topic] = at + 1
        if self._fault is not None:
            return self._choose_available(queues, at, last_broker, self._fault)
        if last_broker is not None:
            for step in range(len(queues)):
                queue = queues[(at + step) % len(queues)]
                if queue.broker_name != last_broker:
                    return queue
        return queues[at % len(queues)]

    @staticmethod
    def _choose_available(
        queues: Sequence[MessageQueue], at: int, last_broker: str | None, fault: LatencyFault
    ) -> MessageQueue:
        second_best: MessageQueue | None = None
        for step in range(len(queues)):
            queue = queues[(at + step) % len(queues)]
            if fault.available(queue.broker_name):
                if queue.broker_name != last_broker:
                    return queue
                second_best = second_best or queue
        if second_best is not None:
            return second_best
        name = fault.least_bad({queue.broker_name for queue in queues})
        candidates = [queue for queue in queues if queue.broker_name == name]
        return candidates[at % len(candidates)]
