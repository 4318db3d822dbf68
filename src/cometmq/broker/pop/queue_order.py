"""The order in which a pop reads the queues of a topic and of its retry topic (``popMsgFromTopic``).

Usually a pop begins at the next queue each time, and reads the retry topic last, or first in one of five pops. In a
topic of type PRIORITY, a queue is a level, and a pop reads the levels from the most urgent one on. The retry topic has
the same levels, so that a message keeps its level when it is handed out again. The group attribute ``priority.factor``
is the percentage of pops that do so; the others read all levels in turn, so that no level waits forever.

A pop with ``retriesFirst``, which is CometMQ's extension, takes turns: one reads the retry topic first (by priority:
that of each level), the next one reads it last. So a message that was given back does not wait behind all others, and
a message that fails again and again does not keep the others waiting.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.tables.group_attributes import priority_factor
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.topic_attributes import PRIORITY, message_type_of
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.pop_headers import PopMessageRequestHeader

_RETRY_FIRST_EVERY: Final = 5
"""One in this many pops reads the retry topic first (``popFromRetryProbability``, 20 %)."""

_MAX_TURNS: Final = 10_000
"""Maximum number of retry topics whose turns are known; more begin again with their retries."""

Place = tuple[str, int]
"""A topic and a queue ID."""


class QueueOrder:
    """Chooses the order for each pop."""

    def __init__(self, live: LiveConfig, groups: SubscriptionGroupManager) -> None:
        self._live = live
        self._groups = groups
        self._turns = itertools.count(random.randrange(1_000))
        self._others_next: set[str] = set()
        """The retry topics that the last pop with ``retriesFirst`` has read first."""

    def places(self, topic: TopicConfig, retry: TopicConfig | None, header: PopMessageRequestHeader) -> list[Place]:
        """Return the queues that a pop reads, in order.

        :param retry: the retry topic if the pop reads it too.
        """
        number, queue_id = next(self._turns), header.queue_id
        retries_first = number % _RETRY_FIRST_EVERY == 0
        takes_turns = retry is not None and bool(header.retries_first)
        if retry is not None and takes_turns:
            retries_first = self._is_turn_of_retries(retry.topic_name)
        if topic.attributes is not None and not header.order and message_type_of(topic.attributes) == PRIORITY:
            chance = random.randrange(100)
            if chance < priority_factor(self._groups.get(header.consumer_group)):
                if not takes_turns:
                    retries_first = chance < self._live.current.pop_from_retry_probability_for_priority
                return self._levels(topic, retry, queue_id, retries_first=retries_first)
        count = topic.read_queue_nums
        queue_ids: Sequence[int] = (queue_id,)
        if queue_id < 0:
            queue_ids = [(number + i) % count for i in range(count)] if count else ()
        places = [(topic.topic_name, own) for own in queue_ids]
        if retry is None:
            return places
        count = retry.read_queue_nums
        retries = [(retry.topic_name, (number + i) % count) for i in range(count)]
        return retries + places if retries_first else places + retries

    def _is_turn_of_retries(self, retry: str) -> bool:
        """Return whether a pop that takes turns reads a retry topic first; the next one then reads it last."""
        if retry in self._others_next:
            self._others_next.discard(retry)
            return False
        if len(self._others_next) >= _MAX_TURNS:
            self._others_next.clear()
        self._others_next.add(retry)
        return True

    def _levels(
        self, topic: TopicConfig, retry: TopicConfig | None, queue_id: int, *, retries_first: bool
    ) -> list[Place]:
        """Return the queues from the most urgent level on, each with that of the retry topic."""
        config = self._live.current
        retry_levels = 0 if retry is None else retry.read_queue_nums
        levels: Iterable[int] = range(max(topic.read_queue_nums, retry_levels))
        if config.priority_order_asc:
            levels = reversed(range(max(topic.read_queue_nums, retry_levels)))
        places: list[Place] = []
        for level in levels:
            of_level: list[Place] = []
            if level < topic.read_queue_nums and queue_id in (-1, level):
                of_level.append((topic.topic_name, level))
            if retry is not None and level < retry_levels:
                of_level.append((retry.topic_name, level))
            places += reversed(of_level) if retries_first else of_level
        return places
