"""Deletion of topics and groups, and of everything that belongs to them, on this broker and its slaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from cometmq.broker.statistics.stats import BrokerStats
from cometmq.broker.tables.broker_tables import BrokerTables
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class Deletions:
    """Removes everything that belongs to a deleted topic or group.

    ``on_topic`` is called with the name of each deleted topic; ``on_group`` is called with the name of each deleted
    group, the end of the log, and whether the group's offsets are removed too.
    """

    def __init__(self, tables: BrokerTables, store: MessageStore, stats: BrokerStats) -> None:
        self._tables = tables
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._store = store
        self._stats = stats
        self.lives = tables.lives
        self.on_topic: list[Callable[[str], None]] = []
        self.on_group: list[Callable[[str, int, bool], None]] = []

    def topics(self, names: Collection[str], position: int) -> None:
        """Remove everything that belongs to topics just deleted; ``position`` is the end of the log."""
        for name in names:
            self.lives.end(name, position)
        self.lives.on_due()
        for name in names:
            self._offsets.forget(topic=name)
            self.end_queues(name, position)

    def found_in_log(self, name: str, position: int) -> None:
        """Apply a topic deletion that was found in the log when the broker starts.

        The tables of a promoted slave may be older than the deletion. A topic with later messages was created again and
        is kept.
        """
        if self._tables.are_copies and self.lives.is_later(self.lives.deleted.get(name), position):
            _log.info("the topic %s was deleted at log offset %d, before the tables were copied", name, position)
            self.topics([name], position)
            if not any(queue.committed for queue in self._store.queues().get(name, {}).values()):
                self._topics.delete(name)

    def end_queues(self, name: str, position: int) -> None:
        """Remove a topic's queues and statistics, and the queues' files once the deletion is durable.

        :param position: the end of the log when the topic was deleted; queues with later messages belong to a topic
            created again, and are kept.
        """
        self._stats.forget_topic(name)
        before = position if position < self._store.max_physical_offset else None
        self._store.delete_topic(name, before=before, when_durable=self._tables.when_durable)
        for listener in self.on_topic:
            listener(name)

    def group(self, name: str, position: int, *, with_offsets: bool) -> None:
        """Remove everything that belongs to a group just deleted; ``position`` is the end of the log."""
        self.lives.end_group(name, position, with_offsets=with_offsets)
        self.lives.on_due()
        if with_offsets:
            self._offsets.forget(group=name)
        self.end_group(name)
        for listener in self.on_group:
            listener(name, position, with_offsets)

    def group_found_in_log(self, name: str, position: int, *, with_offsets: bool) -> None:
        """Apply a group deletion that was found in the log when the broker starts; see :meth:`found_in_log`."""
        known = self.lives.deleted_groups.get(name)
        if self._tables.are_copies and self.lives.is_later(known, position):
            _log.info("the group %s was deleted at log offset %d, before the tables were copied", name, position)
            self._tables.groups.delete(name)
            self.group(name, position, with_offsets=with_offsets)

    def end_group(self, name: str) -> None:
        """Remove the statistics of a group that is no longer in the table."""
        self._stats.forget_group(name)
