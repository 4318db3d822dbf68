"""A broker's tables, which are loaded and repaired when it starts, and written when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.tables.clients import ConsumerManager
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.rebalance_locks import LockFile, RebalanceLockManager
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.broker.tables.table_recovery import limit_offsets, recover_tables
from cometmq.broker.tables.table_writer import TableWriter
from cometmq.broker.tables.topic_lives import TopicLives
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.periodic import Alarm
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.known_topics import DELETED_TOPICS


class BrokerTables:
    """A broker's tables: topics, deletions of topics and groups, groups, consumer offsets and locks.

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
        self._writers: list[RowWriter[Any]] = [self.lives.writer, self.topics.writer, self.groups.writer]
        """Writers of all tables. Deletions come first, so that a topic that is created again does not get messages from
        before its deletion.
        """
        self._writer: TableWriter | None = None
        """The writer of the tables; ``None`` before the broker starts, while each change is written immediately."""

    def load(self, store: MessageStore, *, is_slave: bool) -> list[str]:
        """Load the files and repair damaged ones from the store; return a line for each problem.

        On a slave, offsets past the end of the log are kept, since the log catches up.
        """
        findings = [
            *(self._mark_copies() if is_slave else ()),
            *self.topics.load(),
            *self.groups.load(),
            *self.offsets.load(),
            *self.lives.load(store.max_physical_offset),
        ]
        self.lives.writer.save()
        self.offsets.log_end = lambda: store.max_physical_offset
        self.offsets.wait_flushed = lambda: store.wait_flushed(store.max_physical_offset)
        self.offsets.forget_ended(self.lives.deleted, self.lives.deleted_groups)
        findings += recover_tables(self.topics, self.groups, self.offsets, store)
        if not is_slave:
            findings += limit_offsets(self.topics, self.offsets, store)
        self._lock_file.load()
        return findings

    @property
    def are_copies(self) -> bool:
        """Return whether a slave wrote these tables, so that they may be older than its log."""
        return self._copies_mark.exists()

    def take_as_own(self) -> None:
        """Promote a slave that starts as a master: make the copied tables its own, and record the end of its log."""
        if self.are_copies:
            self.save()
            self.offsets.save()
            if not self.topics.cannot_be_saved:
                self._copies_mark.unlink()

    def _mark_copies(self) -> list[str]:
        try:
            self._copies_mark.touch()
        except OSError as error:
            return [f"cannot write comet/{self._copies_mark.name}: {error.strerror}"]
        return []

    def save(self) -> None:
        """Write pending changes to topics, deletions, groups and locks."""
        if self._writer is not None:
            self._writer.write_now()
        else:
            for writer in self._writers:
                writer.save()
        self._lock_file.save()

    def retry(self) -> None:
        """Retry writing the changes that could not be written before."""
        assert self._writer is not None
        self._writer.changed()

    def when_durable(self, work: Callable[[], None]) -> None:
        """Call ``work`` once all changes made so far are durable, even if this takes several attempts."""
        if self._writer is None:
            work()
        else:
            self._writer.when_durable(work)

    def end_round(self) -> None:
        """Start writing this round's changes; complete files follow later."""
        assert self._writer is not None
        self._lock_file.save()
        self._writer.end_round()

    def _set_alarm(self) -> None:
        if self._writing is None and not self._alarm.is_set:
            waits = [writer.seconds_to_whole for writer in self._writers]
            soonest = min((wait for wait in waits if wait is not None), default=None)
            if soonest is not None:
                self._alarm.after(soonest)

    def _ring(self) -> None:
        self._write_whole_soon(self._writers)

    async def write_deletions(self) -> None:
        """Write the complete deletions file if it lacks changes, since slaves copy it."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        self._alarm.cancel()
        await asyncio.wait((self._write_whole_soon([self.lives.writer], at_once=True),))

    def _write_whole_soon(self, writers: list[RowWriter[Any]], *, at_once: bool = False) -> asyncio.Task[None]:
        work = self._write_whole(writers, at_once=at_once)
        self._writing = asyncio.get_running_loop().create_task(work, name="write complete tables")
        return self._writing

    async def _write_whole(self, writers: list[RowWriter[Any]], *, at_once: bool) -> None:
        assert self._writer is not None
        try:
            for writer in writers:
                await writer.save_in_background(self._writer.between_writes, at_once=at_once)
        finally:
            self._writing = None
        self._set_alarm()

    async def finish(self) -> None:
        """Attempt once to write all changes made so far."""
        assert self._writer is not None
        await self._writer.finish()

    async def save_last(self) -> None:
        """Write a complete file for each table that has changed since its last write; called when the broker stops."""
        self._alarm.close()
        if self._writing is not None:
            await self._writing
        self.save()
        if self._writer is not None:
            self._writer.close()
        for writer in self._writers:
            writer.save_last()
        self.offsets.save_last()

    def written_by_rounds(self, schedule_round: Callable[[], None]) -> TableWriter:
        """Start writing changes in a thread at the end of each round."""
        writer = self._writer = TableWriter(self._writers, schedule_round, self._set_alarm)
        self.topics.on_due = self.groups.on_due = self.lives.on_due = self._lock_file.on_due = writer.changed
        return writer

    def add(self, table: RowWriter[Any]) -> Callable[[], None]:
        """Register a table to be written; return the function to call after each change."""
        assert self._writer is not None
        self._writers.append(table)
        return self._writer.changed
