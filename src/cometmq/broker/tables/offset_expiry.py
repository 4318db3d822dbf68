"""OffsetExpiry: removes the consumer offsets of missing topics after a day."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cometmq.broker.limits import MAX_CONSUMER_OFFSET_NAMES, OFFSET_EXPIRY_SECONDS
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.clock import Clock
from cometmq.message.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS


class OffsetExpiry:
    """Removes offsets in missing topics, so that random names cannot fill the table forever.

    A topic-group pair is removed after :data:`~cometmq.broker.limits.OFFSET_EXPIRY_SECONDS` in which the broker had
    neither the topic nor one of its queues, and the group had no live member. A restart resets this time. The table is
    scanned in slices. (``scanUnsubscribedTopic``, which Apache 4.9.7 never calls.)

    :param has_topic: returns whether a topic, or one of its queues, exists.
    :param is_live: returns whether a group has live members.
    """

    def __init__(
        self,
        offsets: ConsumerOffsetManager,
        has_topic: Callable[[str], bool],
        is_live: Callable[[str], bool],
        *,
        clock: Clock,
    ) -> None:
        self._offsets = offsets
        self._has_topic = has_topic
        self._is_live = is_live
        self._clock = clock
        self._left: Iterator[list[str]] = iter(())
        self._gone_since: dict[str, float] = {}
        """Time at which each unused pair was first found, as of the end of the previous scan."""
        self._still_gone: dict[str, float] = {}
        """Time at which each unused pair was first found, as far as the current scan has come."""

    def expire_next(self) -> None:
        """Check the next pairs, and remove those that have expired."""
        keys = next(self._left, None)
        if keys is None:
            self._left = self._offsets.table.slices()
            self._gone_since, self._still_gone = self._still_gone, {}
            keys = next(self._left)
        now = self._clock.monotonic()
        for key in keys:
            topic, _, group = key.partition("@")
            since = self._gone_since.pop(key, now)
            if self._is_needed(topic, group):
                continue
            if now - since >= OFFSET_EXPIRY_SECONDS:
                self._offsets.drop(key)
            elif len(self._still_gone) < MAX_CONSUMER_OFFSET_NAMES and key in self._offsets.table:
                self._still_gone[key] = since

    def _is_needed(self, topic: str, group: str) -> bool:
        is_system = group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
        return is_system or self._has_topic(topic) or self._is_live(group)
