"""The tables of a broker: loaded and completed at its start, written when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.periodic import Alarm
from cometmq.broker.tables.clients import ConsumerManager
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.rebalance_locks import LockFile, RebalanceLockManager
from cometmq.broker.tables.table_file import RoundWriter
from cometmq.broker.tables.table_recovery import bring_back, recover_tables
from cometmq.broker.tables.topic_lives import TopicLives
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.known_topics import DELETED_TOPICS


class BrokerTables:
    """Topics and their lives, groups, consumer offsets and locks of a broker.

    :param root: the directory of the store.
    """

    def __init__(self, live: LiveConfig, root: Path, consumers: ConsumerManager, *, clock: Clock) -> None:
        self.topics: Final = TopicConfigManager(live, root / "config" / "topics.json", clock=clock)
        self.groups: Final = SubscriptionGroupManager(live, root / "config" / "subscriptionGroup.json", clock=clock)
        self.offsets: Final = ConsumerOffsetManager(root / "config" / "consumerOffset.json", clock=clock)
        self.lives: Final = TopicLives(root / "comet" / DELETED_TOPICS, consumers, clock=clock)
        self.locks: Final = RebalanceLockManager(clock=clock)
        self._copies_mark = root / "comet" / "copiedTables"
        self._alarm = Alarm(self._ring, clock=clock)
        self._writing: asyncio.Task[None] | None = None
        self._lock_file = LockFile(self.locks, root / "comet" / "locks.json")

    def load(self, store: MessageStore, *, is_slave: bool) -> list[str]:
        """Load the files, and complete damaged ones from the store; return a line for each finding.

        A slave keeps offsets behind the end of its log, since its log catches up.
        """
        findings = [
            *(self._mark_copies() if is_slave else ()),
            *self.topics.load(),
            *self.groups.load(),
            *self.offsets.load(),
            *self.lives.load(store.max_physical_offset),
        ]
        self.lives.save()
        self.offsets.log_end = lambda: store.max_physical_offset
        self.offsets.forget_ended(self.lives.deleted, self.lives.deleted_groups)
        findings += recover_tables(self.topics, self.groups, self.offsets, store)
        if not is_slave:
            findings += bring_back(self.topics, self.offsets, store)
        self._lock_file.load()
        return findings

    @property
    def are_copies(self) -> bool:
        """Return whether a slave wrote these tables: they may be older than its log."""
        return self._copies_mark.exists()

    def take_as_own(self) -> None:
        """Write the tables of a slave that is now the master, with the end of its log."""
        if self.are_copies:
            self.save()
            self.offsets.save()
            if not self.topics.cannot_be_saved:
                self._copies_mark.unlink()

    def _mark_copies(self) -> list[str]:
        try:
            self._copies_mark.touch()
        except OSError as error:
            return [f"comet/{self._copies_mark.name} cannot be written: {error.strerror}"]
        return []

    def save(self) -> None:
        """Append changes of topics, lives, groups and locks; complete files of topics and groups follow later."""
        self.topics.save()
        self.lives.save()
        self.groups.save()
        self._lock_file.save()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._writing is None and not self._alarm.is_set:
            waits = (self.topics.seconds_to_whole, self.groups.seconds_to_whole)
            soonest = min((wait for wait in waits if wait is not None), default=None)
            if soonest is not None:
                self._alarm.after(soonest)

    def _ring(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_whole(), name="write whole tables")

    async def _write_whole(self) -> None:
        try:
            await self.topics.save_in_background()
            await self.groups.save_in_background()
        finally:
            self._writing = None
        self._set_alarm()

    async def save_last(self) -> None:
        """Write every table that changed since its last write as a complete file; the broker stops."""
        self._alarm.close()
        if self._writing is not None:
            await self._writing
        self.save()
        self.topics.save_last()
        self.groups.save_last()
        self.offsets.save_last()

    def written_by_rounds(self, schedule_round: Callable[[], None]) -> RoundWriter:
        """Allow writing changes at the end of the turn that makes them."""
        writer = RoundWriter(self.save, schedule_round)
        self.topics.on_due = self.groups.on_due = self.lives.on_due = self._lock_file.on_due = writer.changed
        return writer
