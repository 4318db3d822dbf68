"""The epochs of a log are records of the log, and survive what the log survives, retention too."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.conftest import StoreBench, fill, put

from cometmq.broker.failover.epochs import EpochLog, epoch_tag
from cometmq.broker.failover.history import History, common_end
from cometmq.message.ids import tags_code
from cometmq.message.names import EPOCHS_TOPIC, is_system_topic
from cometmq.message.record import decode_record
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import WriteBatch


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    bench = StoreBench(tmp_path / "store")
    yield bench
    bench.close_all()


def test_each_epoch_has_its_own_code() -> None:
    codes = [tags_code(epoch_tag(epoch)) for epoch in (1, 2, 30, 31, 32, 961, 100_000, 28_629_150)]
    assert [code - codes[0] for code in codes] == [0, 1, 29, 30, 31, 960, 99_999, 28_629_149]
    for epoch in (0, -1, 28_629_151):
        with pytest.raises(ValueError, match="must be from 1"):
            epoch_tag(epoch)


async def test_a_marker_is_the_first_record_of_its_epoch_and_flushed(bench: StoreBench) -> None:
    store = bench.open()
    epochs = EpochLog(store)
    assert epochs.history() == History((), 0)
    first = await epochs.begin(3)
    assert (store.flushed_position, store.max_physical_offset) == (first, first)
    fill(store, 20)
    at = store.max_physical_offset
    second = await epochs.begin(7)
    assert epochs.history() == History(((3, 0), (7, at)), second)
    assert epochs.last_epoch == 7
    data = store.record_at(at)
    assert data is not None
    marker = decode_record(data)
    assert (marker.topic, marker.queue_id, marker.queue_offset, marker.body) == (EPOCHS_TOPIC, 0, 1, b"7")
    assert is_system_topic(EPOCHS_TOPIC)
    for epoch in (7, 6, 1):
        with pytest.raises(ValueError, match=f"epoch {epoch} cannot follow epoch 7"):
            await epochs.begin(epoch)
    assert store.max_physical_offset == second


async def test_a_marker_that_cannot_be_written_is_not_there(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    epochs = EpochLog(store)

    def fail(_: WriteBatch) -> None:
        raise StoreError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(WriteBatch, "_write", fail)
        with pytest.raises(StoreError, match="no space"):
            await epochs.begin(1)
    assert epochs.history() == History((), 0)
    await epochs.begin(1)
    assert epochs.last_epoch == 1


@pytest.mark.parametrize("lost", ["nothing", "the position", "the queue", "all but the log"])
async def test_a_start_finds_the_epochs_again(bench: StoreBench, lost: str) -> None:
    store = bench.open()
    epochs = EpochLog(store)
    for epoch in (1, 2, 900):
        await epochs.begin(epoch)
        fill(store, 30)
    wanted = epochs.history()
    if lost == "all but the log":
        (bench.root / "config").mkdir()
        (bench.root / "config" / "topics.json").write_text('{"topicConfigTable":{"TopicTest":{}}}')
    copy = bench.crashed_copy(bench.root.with_name("copy"))
    if lost == "the position":
        (copy.root / "comet" / "position.json").unlink(missing_ok=True)
    if lost == "the queue":
        shutil.rmtree(copy.root / "consumequeue" / EPOCHS_TOPIC, ignore_errors=True)
    if lost == "all but the log":
        for name in ("consumequeue", "comet", "index"):
            shutil.rmtree(copy.root / name, ignore_errors=True)
    again = copy.open()
    assert EpochLog(again).history() == wanted
    copy.close_all()


async def test_markers_survive_the_deletion_of_their_log_files(bench: StoreBench) -> None:
    store = bench.open(mapped_file_size_commit_log=4096)
    epochs = EpochLog(store)
    await epochs.begin(1)
    await epochs.begin(5)
    fill(store, 100)
    wanted = epochs.history().epochs
    expire(store)
    await store.wait_flushed(store.max_physical_offset)
    assert store.delete_expired_files() > 2
    begin = store.min_physical_offset
    assert begin > wanted[-1][1]
    history = epochs.history()
    assert (history.epochs, history.begin) == (wanted, begin)
    assert epochs.last_epoch == 5
    store.close_now()
    again = bench.open(mapped_file_size_commit_log=4096)
    assert EpochLog(again).history() == history.checked()
    end = await EpochLog(again).begin(6)
    assert EpochLog(again).history().epochs == (*wanted, (6, history.end))
    assert end > history.end


async def test_a_new_copy_of_a_log_knows_the_epochs_that_the_log_no_longer_has(tmp_path: Path) -> None:
    master = StoreBench(tmp_path / "master").open(mapped_file_size_commit_log=4096)
    theirs = EpochLog(master)
    await theirs.begin(1)
    await theirs.begin(5)
    fill(master, 100)
    expire(master)
    await master.wait_flushed(master.max_physical_offset)
    master.delete_expired_files()
    await theirs.begin(8)
    masters = theirs.history()

    bench = StoreBench(tmp_path / "slave")
    store = bench.open(mapped_file_size_commit_log=4096)
    mine = EpochLog(store)
    assert common_end(mine.history(), masters) == masters.begin
    mine.adopt(masters)
    store.replicated.begin_at(masters.begin)
    at = masters.begin
    while (view := master.log_part(at, 1 << 20)) is not None and len(view):
        store.replicated.append(at, bytes(view))
        at += len(view)
    assert mine.history() == masters
    assert common_end(mine.history(), masters) == masters.end
    store.close_now()
    again = bench.open(mapped_file_size_commit_log=4096)
    assert EpochLog(again).history() == masters
    again.close_now()
    (bench.root / "comet" / "position.json").unlink()
    again = bench.open(mapped_file_size_commit_log=4096)
    assert EpochLog(again).history() == masters
    again.close_now()
    master.close_now()


async def test_a_copy_that_dies_before_its_log_begins_starts_as_an_empty_one(tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "store")
    store = bench.open(mapped_file_size_commit_log=4096)
    masters = History(((1, 0), (5, 2000)), 90_000, 8192)
    EpochLog(store).adopt(masters)
    copy = bench.crashed_copy(tmp_path / "copy")
    config = dataclasses.replace(copy.config, mapped_file_size_commit_log=4096)
    store = MessageStore.open(config, is_slave=True)
    mine = EpochLog(store)
    assert mine.history() == History((), 0)
    mine.adopt(masters)
    store.replicated.begin_at(8192)
    assert mine.history().epochs == ((1, 0), (5, 2000))
    store.close_now()
    bench.close_all()


async def test_messages_of_other_kinds_in_the_topic_are_no_epochs(bench: StoreBench) -> None:
    store = bench.open()
    epochs = EpochLog(store)
    await epochs.begin(4)
    put(store, EPOCHS_TOPIC, 0, b"9", tag="another")
    put(store, EPOCHS_TOPIC, 0, b"9")
    put(store, EPOCHS_TOPIC, 0, b"3", tag=epoch_tag(3))
    store.batch.commit()
    assert epochs.history().epochs == ((4, 0),)


def expire(store: MessageStore) -> None:
    """Make the log files old."""
    for path in (store.config.root / "commitlog").iterdir():
        os.utime(path, (1, 1))
