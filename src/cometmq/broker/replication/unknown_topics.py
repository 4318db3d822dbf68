"""Topics that a slave has messages of before it has copied them: made at once, so that nothing is hidden.

The master may be gone before its table of topics is copied the next time. What was stored under a new topic would be
there then, and no consumer could ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cometmq.broker.topics import TopicConfigManager
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.properties import REAL_TOPIC
from cometmq.store.message_store import MessageStore, TopicQueue

_WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC})
"""What is stored under these waits for another topic, which its record names."""
_REAL_TOPIC: Final = re.compile(rb"\b" + REAL_TOPIC.encode() + rb"\x01([%|\w-]+)", re.ASCII)


class UnknownTopics:
    """Looks at what was replicated."""

    def __init__(self, store: MessageStore, topics: TopicConfigManager) -> None:
        self._store = store
        self._topics = topics
        self._seen: dict[tuple[str, int], int] = {}
        """The queue offset up to which messages that wait were looked at, by topic and queue id."""

    def arrived(self, queues: Iterable[TopicQueue]) -> bool:
        """Messages came in these queues: make the topics that are not known; return whether there were any."""
        made = False
        for queue in queues:
            if queue.topic in _WAITING_TOPICS:
                for topic in self._waited_for(queue):
                    made = self._topics.note_queue(topic, 0) or made
            elif self._topics.get(queue.topic) is None:
                made = self._topics.note_queue(queue.topic, queue.queue_id) or made
        return made

    def _waited_for(self, queue: TopicQueue) -> set[str]:
        """The topics that the new messages of a queue will be stored under."""
        start = self._seen.get(queue.key, queue.known_from)
        self._seen[queue.key] = queue.committed
        topics: set[str] = set()
        for offset in range(start, queue.committed):
            unit = queue.unit(offset)
            record = self._store.view(unit[0], unit[1]) if unit is not None else None
            found = _REAL_TOPIC.findall(record) if record is not None else []
            if found:
                topics.add(found[-1].decode())  # the properties come last: a body may say anything
        return topics
