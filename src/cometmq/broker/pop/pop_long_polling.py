"""PopLongPollingService: holds pops and notifications until messages arrive (``PopLongPollingService``).

Requests wait by topic and group. When a message arrives in the topic or in the group's retry topic, or when an ordered
queue is unlocked, they run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import MAX_HELD_POP_CHARS
from cometmq.broker.pop.held_requests import HeldRequest, HeldRequests, Key
from cometmq.broker.pull.filters import MessageFilter
from cometmq.clock import Clock
from cometmq.message.pop_info import pop_retry_topic
from cometmq.multimap import MultiMap
from cometmq.store.message_store import ConsumeQueue

_RECORD_CHARS: Final = 500
"""Memory of a waiting pop in addition to its texts, in characters."""


class HeldPop(HeldRequest, eq=False, kw_only=True):
    """A held pop or notification."""

    wanted: MessageFilter
    chars: int = 0
    """Memory of the held request, in characters."""

    @property
    def key(self) -> Key:
        """Return the topic and group of the request."""
        return self.request.header.topic, self.request.header.consumer_group

    @property
    def speaks_for_all(self) -> bool:
        """Return whether the request wants all messages of all queues."""
        return self.wanted.wants_all and self.request.header.queue_id < 0

    def count_chars(self) -> int:
        """Count the memory of the held request."""
        header = self.request.header
        texts = (header.topic, header.consumer_group, header.exp, header.exp_type, header.attempt_id)
        self.chars = _RECORD_CHARS + self.wanted.chars + sum([len(text) for text in texts if isinstance(text, str)])
        return self.chars


class PopLongPollingService(HeldRequests[HeldPop]):
    """Holds waiting pops and wakes them when messages arrive."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        super().__init__(live, clock)
        self._keys_of: MultiMap[str, Key] = MultiMap()
        """The keys to wake when a message arrives in a topic."""
        self._chars = 0

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of pops waiting for one queue, or for any queue (-1)."""
        held = self._held.get((topic, group), {})
        return sum(pop.request.header.queue_id == queue_id for pop in held)

    def hold(self, one: HeldPop, wait_ms: int) -> bool:
        """Hold a pop; return ``False`` if too many pops are already waiting (POLLING_FULL).

        :raises RefusedError: the broker stops.
        """
        chars = one.count_chars()
        if self._chars + chars > MAX_HELD_POP_CHARS or not super().hold(one, wait_ms):
            return False
        self._chars += chars
        for topic in self._topics(one.key):
            self._keys_of.add(topic, one.key)
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pops for which messages became visible in these queues."""
        if not self._count:
            return
        for queue in queues:
            for key in self._keys_of.of(queue.topic):
                self._wake(key)

    def _remove(self, one: HeldPop) -> None:
        super()._remove(one)
        self._chars -= one.chars
        if one.key not in self._held:
            for topic in self._topics(one.key):
                self._keys_of.remove(topic, one.key)

    @staticmethod
    def _topics(key: Key) -> tuple[str, str]:
        return key[0], pop_retry_topic(*key)
