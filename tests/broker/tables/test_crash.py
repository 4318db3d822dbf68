"""A crash at every write and flush of the tables: what was answered is there after it, and nothing is damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.snapshots import SnapshotDisk
from tests.helpers.waiting import real_time

import cometmq.broker.tables.consumer_offsets
import cometmq.broker.tables.versioned_table
from cometmq.broker.config import LiveConfig
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.queue_offsets import NO_OFFSET
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.remoting.bodies import TopicConfig
from cometmq.store.disk import Disk
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings
from cometmq.testing import VirtualClock

pytestmark = pytest.mark.crash

State = dict[str, int | None]
"""The permission of each topic that was ever made; ``None`` once it was deleted."""


def topics_of(store: Path, clock: VirtualClock, disk: Disk | None = None) -> TopicConfigManager:
    live = LiveConfig(small_config(store.parent))
    return TopicConfigManager(live, store / "config" / "topics.json", clock=clock, disk=disk)


def offsets_of(store: Path, clock: VirtualClock, disk: Disk | None = None) -> ConsumerOffsetManager:
    return ConsumerOffsetManager(store / "config" / "consumerOffset.json", clock=clock, disk=disk)


async def test_of_topics_at_every_write_and_flush(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.tables.versioned_table, "TABLE_ROWS_PER_SLICE", 3)
    answered: State = {}
    asked: State = {}
    disk = SnapshotDisk(tmp_path / "store", lambda: (dict(answered), dict(asked)))
    topics = topics_of(tmp_path / "store", clock, disk)
    assert topics.load() == []

    def change(name: str, perm: int | None) -> None:
        asked[name] = perm
        if perm is None:
            topics.delete(name)
        else:
            topics.put(TopicConfig(topic_name=name, perm=perm))
        answered[name] = perm

    for number in range(6):
        change(f"T{number}", 6)
        writing = asyncio.create_task(topics.writer.save_in_background())
        clock.advance(1)
        for step in range(8):
            await real_time(0.001)
            change(f"T{number}", step)
            if step == 4:
                change(f"T{number // 2}", None)
        await writing
    topics.writer.save_last()
    assert len(disk.copies) > 200
    for directory, (before, after) in disk.copies:
        again = topics_of(directory / "store", clock)
        assert again.load() == [], directory
        known = known_topics(directory / "store", Findings(directory / "store"))
        for name in after:
            found = again.get(name)
            perm = None if found is None else found.perm
            assert perm in (before.get(name), after[name]), (directory, name)
            assert known.names is None or (name in known) == (found is not None), (directory, name)
    assert not (tmp_path / "store" / "comet" / "tables" / "topics.bases").exists()


async def test_of_consumer_offsets_at_every_write_and_flush(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No offset that was persisted goes back, and what was removed before does not come again."""
    monkeypatch.setattr(cometmq.broker.tables.consumer_offsets, "TABLE_ROWS_PER_SLICE", 3)
    persisted: dict[tuple[str, int], int] = {}
    committed: dict[tuple[str, int], int] = {}
    disk = SnapshotDisk(tmp_path / "store", lambda: (dict(persisted), dict(committed)))
    offsets = offsets_of(tmp_path / "store", clock, disk)
    assert offsets.load() == []

    async def persist() -> None:
        before = dict(committed)
        clock.advance(1)
        await offsets.save_in_background()
        persisted.update(before)

    value = 0
    for number in range(8):
        saving = asyncio.create_task(persist())
        while not saving.done():
            value += 1
            key = (f"T{value % 4}", value % 3)
            offsets.commit("g", *key, value)
            committed[key] = value
            await asyncio.sleep(0)
        if number == 4:
            offsets.forget(group="gone")
        if number == 2:
            offsets.commit("gone", "T0", 0, 1)
    offsets.save_last()
    assert len(disk.copies) > 60
    for directory, (before, after) in disk.copies:
        again = offsets_of(directory / "store", clock)
        assert again.load() == [], directory
        for (topic, queue_id), offset in before.items():
            assert offset <= again.query("g", topic, queue_id) <= after[topic, queue_id], (directory, topic)
    again = offsets_of(tmp_path / "store", clock)
    assert again.load() == []
    assert again.query("gone", "T0", 0) == NO_OFFSET
