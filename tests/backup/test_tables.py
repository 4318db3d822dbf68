"""A backup that is made while the broker writes a table whole has every change from before it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Wire
from tests.helpers.waiting import until, wait_for

from cometmq.backup import create
from cometmq.backup.copies import copy_data
from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.verify import verify_backup
from cometmq.broker.config import LiveConfig
from cometmq.broker.controller import Broker
from cometmq.broker.failover.identity import IDENTITY_FILE, Identity, boot_id, read_identity, write_identity
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.store.recovery.known_topics import DELETED_TOPICS, known_topics
from cometmq.store.recovery.load import Findings
from cometmq.store.table_journal import Base
from cometmq.testing import VirtualClock


def topics_of(store: Path, clock: Clock) -> TopicConfigManager:
    topics = TopicConfigManager(LiveConfig(small_config(store.parent)), store / "config" / "topics.json", clock=clock)
    assert topics.load() == []
    return topics


async def store_with_a_message(directory: Path, clock: VirtualClock) -> Path:
    broker = Broker(small_config(directory), clock=clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    await wire.send("First")
    await wire.close()
    await broker.stop()
    return directory / "store"


async def test_a_file_that_takes_its_place_after_the_journals_were_copied(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_with_a_message(tmp_path, clock)
    topics = topics_of(store, clock)
    topics.put(TopicConfig(topic_name="Early"))
    copied, copies_now = create._copy, threading.Event()
    take_place = JournaledFile._take_place

    def wait_and_take_place(file: JournaledFile, base: Base) -> None:
        copies_now.wait(60)
        take_place(file, base)

    monkeypatch.setattr(JournaledFile, "_take_place", wait_and_take_place)
    writing = asyncio.create_task(topics.writer.save_in_background())
    await until((store / "config" / "topics.json.tmp").exists)
    topics.put(TopicConfig(topic_name="BeforeTheBackup"))

    def copy(work: Any, path: Path, name: str, **more: Any) -> bool:
        if name == "config/topics.json":
            copies_now.set()
            wait_for(writing.done, "the file is in its place")
        return copied(work, path, name, **more)

    monkeypatch.setattr(create, "_copy", copy)
    await asyncio.to_thread(create.create_backup, create.Options(store, DirectoryBackup(tmp_path / "backup")))
    found = topics_of(tmp_path / "backup" / "store", clock)
    assert {"Early", "BeforeTheBackup"} <= found.table.keys()


async def test_a_file_that_is_deleted_while_it_is_copied_is_not_in_the_backup(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_with_a_message(tmp_path, clock)
    gone = store / "comet" / "tables" / "topics.0.journal"
    gone.write_bytes(b"changes")
    copied = copy_data

    def copy(source: Path, *more: Any) -> tuple[int, str]:
        result = copied(source, *more)
        if source == gone:
            source.unlink()
        return result

    monkeypatch.setattr("cometmq.backup.directory.copy_data", copy)
    backup = DirectoryBackup(tmp_path / "backup")
    await asyncio.to_thread(create.create_backup, create.Options(store, backup))
    assert not gone.exists()
    verify_backup(backup)


async def test_deletions_that_only_the_journal_has_are_in_the_backup_and_removed_files_are_not(
    tmp_path: Path, clock: VirtualClock
) -> None:
    broker = Broker(small_config(tmp_path), clock=clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    for topic in ("First", "Second"):
        assert (await wire.send(topic)).code == 0
        deletion = DeleteTopicRequestHeader(topic=topic)
        assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, deletion)).code == 0
    store = tmp_path / "store"
    assert b"Second" not in (store / "comet" / DELETED_TOPICS).read_bytes()
    (store / "comet" / "removed" / "left").mkdir(parents=True, exist_ok=True)
    (store / "comet" / "removed" / "left" / "file").touch()
    await asyncio.to_thread(create.create_backup, create.Options(store, DirectoryBackup(tmp_path / "backup")))
    copy = tmp_path / "backup" / "store"
    known = known_topics(copy, Findings(copy))
    assert 0 < known.begin_of("First") < known.begin_of("Second")
    assert not (copy / "comet" / "removed").exists()
    await wire.close()
    await broker.stop()


async def test_a_restored_store_is_a_new_member_of_its_set(tmp_path: Path, clock: VirtualClock) -> None:
    """It is older than the store from which the backup was made, so it must not be elected as that member."""
    broker = Broker(small_config(tmp_path), clock=clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    assert (await wire.send("First")).code == 0
    await wire.close()
    store = tmp_path / "store"
    write_identity(store / "comet" / IDENTITY_FILE, Identity(7, boot_id(), is_clean=True, is_solid=True))
    await asyncio.to_thread(create.create_backup, create.Options(store, DirectoryBackup(tmp_path / "backup")))
    await broker.stop()
    copy = tmp_path / "backup" / "store"
    assert read_identity(copy / "comet" / IDENTITY_FILE) is None
