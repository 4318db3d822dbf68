"""The queues of each topic on each broker: topic → broker name → queues, and the reverse.

A broker may have a hundred thousand topics. They are added in slices of
:data:`~cometmq.namesrv.limits.TOPICS_PER_SLICE`, and dropped in slices after the broker has left, so that other
requests are answered in between. The topics of a broker that has left are *left over* until they are dropped; responses
never contain them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping

import msgspec

from cometmq.multimap import MultiMap
from cometmq.namesrv.limits import TOPICS_PER_SLICE
from cometmq.remoting.bodies import QueueData


class TopicQueues:
    """The topics of a nameserver, with their queues."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: MultiMap[str, str] = MultiMap()
        """The topics of each broker."""
        self._left_over: deque[tuple[str, list[str]]] = deque()
        """Brokers that have left, with those of their topics that are still in the table."""
        self._pairs = 0
        """Number of topic-broker pairs in the table."""

    # --- questions ----------------------------------------------------------------------------
    def of(self, topic: str) -> Mapping[str, QueueData]:
        """Return a topic's queues by broker name."""
        queues = self._topics.get(topic, {})
        if not self._left_over:
            return queues
        return {name: data for name, data in queues.items() if topic in self._topics_of.get(name, ())}

    def items(self) -> Iterator[tuple[str, Mapping[str, QueueData]]]:
        """Yield each topic with its queues by broker name."""
        if not self._left_over:
            return iter(self._topics.items())
        return ((topic, queues) for topic in self._topics if (queues := self.of(topic)))

    def names(self) -> list[str]:
        """Return all topics that a broker has."""
        return list(self._topics) if not self._left_over else [topic for topic, _ in self.items()]

    def __len__(self) -> int:
        """Return the number of topics, including left-over topics."""
        return len(self._topics)

    def count_with(self, broker_name: str, topics: Collection[str], most: int) -> tuple[int, int]:
        """Return the numbers of topics and topic-broker pairs after adding these topics.

        If both numbers are at most ``most`` even if all these topics are new, they are not counted: that takes 10 ms
        for 100,000.
        """
        if self._pairs + len(topics) <= most:
            return self._pairs + len(topics), self._pairs + len(topics)  # a topic has at least one pair
        held = self._topics_of.get(broker_name, {})
        new = [topic for topic in topics if topic not in held]
        return len(self._topics) + sum(topic not in self._topics for topic in new), self._pairs + len(new)

    # --- changes ------------------------------------------------------------------------------
    def add(self, broker_name: str, topics: Mapping[str, QueueData], *, replace: bool) -> Iterator[None]:
        """Add a broker's topics, slice by slice; replace known topics only if ``replace`` is true."""
        for number, (topic, data) in enumerate(topics.items()):
            if number and number % TOPICS_PER_SLICE == 0:
                yield
            is_new = topic not in self._topics_of.get(broker_name, ())
            if is_new or replace:
                queues = self._topics.setdefault(topic, {})
                self._pairs += broker_name not in queues
                queues[broker_name] = data
            if is_new:
                self._topics_of.add(broker_name, topic)

    def drop(self, topic: str, broker_name: str) -> bool:
        """Remove a topic from a broker; return whether the broker had it."""
        if topic not in self._topics_of.get(broker_name, ()):
            return False
        self._topics_of.remove(broker_name, topic)
        self._remove(topic, broker_name)
        return True

    def remove_broker(self, broker_name: str) -> None:
        """Remove a broker, whose topics are dropped by :meth:`sweep`."""
        held = list(self._topics_of.pop(broker_name, ()))
        if held:
            self._left_over.append((broker_name, held))

    def sweep(self) -> Iterator[None]:
        """Drop the topics of removed brokers, slice by slice."""
        while self._left_over:
            broker_name, topics = self._left_over[0]
            for topic in topics[-TOPICS_PER_SLICE:]:
                if topic not in self._topics_of.get(broker_name, ()):  # otherwise the broker has registered again
                    self._remove(topic, broker_name)
            del topics[-TOPICS_PER_SLICE:]
            if not topics:
                self._left_over.popleft()
            if self._left_over:
                yield

    def _remove(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is not None:
            self._pairs -= 1
            if not queues:
                del self._topics[topic]

    def set_perm(self, broker_name: str, change: Callable[[int], int]) -> Generator[None, None, int]:
        """Change the permission of all queues on a broker, slice by slice; return the number of its topics."""
        topics = self._topics_of.of(broker_name)
        for number, topic in enumerate(topics):
            if number and number % TOPICS_PER_SLICE == 0:
                yield
            if topic in self._topics_of.get(broker_name, ()):
                queues = self._topics[topic]
                queue = queues[broker_name]
                queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
        return len(topics)
