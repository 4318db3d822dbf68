"""A rebuild gives no offset of a queue again, keeps the sizes of files, and makes entries that are missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics
from tests.store.conftest import StoreBench, fill, put, served
from tests.store.recovery.test_emptied_queues import EMPTIED, emptied_store
from tests.store.recovery.test_file_sizes import lengths
from tests.store.test_version import everything_in

from cometmq.client import Message
from cometmq.client.sync import SyncPullConsumer
from cometmq.spark.jobs.rebuild.job import rebuild
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.lost_log import LostLogError
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.spark


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    bench = StoreBench(tmp_path / "store")
    yield bench
    bench.close_all()


def extents(store: MessageStore, topic: str = "TopicTest") -> dict[int, tuple[int, int]]:
    return {number: (queue.min_offset(), queue.max_offset()) for number, queue in store.queues()[topic].items()}


@pytest.mark.parametrize("lost", ["nothing", "comet", "consumequeue/TopicTest"])
def test_an_emptied_queue_keeps_its_numbering(spark: Any, bench: StoreBench, lost: str) -> None:
    """Its end is in its files, and in ``comet/position.json``, which Apache does not have."""
    emptied_store(bench)
    shutil.rmtree(bench.root / lost, ignore_errors=True)
    for number in range(2):
        rebuild(bench.root, spark=spark)
        store = bench.open()
        assert extents(store) == dict.fromkeys(range(3), (EMPTIED, EMPTIED + number))
        last = store.queue("TopicTest", 0).unit(EMPTIED - 1)
        assert last is not None
        assert last[0] < store.min_physical_offset, "behind a blank unit Apache gives new messages none"
        assert len(served(store)["Other", 0]) > 200
        fill(store, 3)
        assert extents(store) == dict.fromkeys(range(3), (EMPTIED, EMPTIED + number + 1))
        store.close_now()


def test_queues_keep_their_numbering_after_their_log_was_lost(spark: Any, bench: StoreBench) -> None:
    """Also a queue that has no message in the new log."""
    store = bench.open()
    fill(store, 3 * EMPTIED)
    store.close_now()
    shutil.rmtree(bench.root / "commitlog")
    with pytest.raises(LostLogError):
        bench.open()
    store = MessageStore.open(bench.config, begin_anew=True)
    put(store, "TopicTest", 0, b"new")
    store.batch.commit()
    expected = extents(store)
    assert [end for _, end in expected.values()] == [EMPTIED + 1, EMPTIED, EMPTIED]
    store.close_now()
    for _ in range(2):
        rebuild(bench.root, spark=spark)
        store = bench.open()
        assert [end for _, end in extents(store).values()] == [EMPTIED + 1, EMPTIED, EMPTIED]
        for queue in store.queues()["TopicTest"].values():
            result = store.get_message(queue, EMPTIED - 1, 32)
            found = store.get_message(queue, result.next_begin_offset, 32)
            assert (result.count, found.count) == (0, 1 if queue.queue_id == 0 else 0)
        assert store.missing_entries() == 0, "nothing to rebuild for"
        store.close_now()


def test_a_rebuild_before_the_first_start_gives_no_lost_offset_again(spark: Any, bench: StoreBench) -> None:
    """The log has lost its end, and ``comet/position.json`` alone knows how far it went."""
    store = bench.open()
    fill(store, 900)
    store.close_now()
    bench.log_files[-1].unlink()
    rebuild(bench.root, spark=spark)
    store = bench.open()
    assert [end for _, end in extents(store).values()] == [300] * 3


def test_the_offset_of_a_damaged_last_message_is_not_given_again(spark: Any, bench: StoreBench, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, 30)
    unit = store.queue("TopicTest", 2).unit(9)
    assert unit is not None
    store.close_now()
    with bench.log_files[0].open("r+b") as file:
        file.seek(unit[0])
        file.write(bytes(b"\x55" * unit[1]))
    rebuild(bench.root, spark=spark, bad_records_path=str(tmp_path / "bad"))
    store = bench.open()
    assert [end for _, end in extents(store).values()] == [10] * 3


@pytest.mark.parametrize("config", [None, StoreConfig(), "the file"])
def test_files_keep_their_sizes(config: Any, spark: Any, bench: StoreBench, tmp_path: Path) -> None:
    """With the default configuration, another one, and none."""
    store = bench.open()
    fill(store, 700)
    expected = served(store)
    store.close_now()
    if config == "the file":
        config = tmp_path / "broker.conf"
        config.write_text("mappedFileSizeConsumeQueue=400\nmaxHashSlotNum=7\nmappedFileSizeCommitLog=1048576\n")
    before = lengths(bench.root)
    assert rebuild(bench.root, config=config, dry_run=True, spark=spark).differ == 0
    rebuild(bench.root, config=config, spark=spark)
    after = lengths(bench.root)
    assert {name: size for name, size in before.items() if "index" not in name} == {
        name: size for name, size in after.items() if "index" not in name
    }
    assert sorted(after.values()) == sorted(before.values())
    again = bench.open()
    assert served(again) == expected
    assert not [line for line in again.findings if "size" in line or "long" in line or "moved" in line]


def test_a_missing_log_is_refused_and_nothing_is_changed(spark: Any, bench: StoreBench) -> None:
    """Queues made from a log of zeros would be empty ones."""
    store = bench.open()
    fill(store, 300)
    store.close_now()
    for path in bench.log_files:
        path.write_bytes(bytes(path.stat().st_size))
    before = everything_in(bench.root)
    with pytest.raises(LostLogError):
        rebuild(bench.root, spark=spark)
    assert everything_in(bench.root) == before


def units_zeroed(queue: Path) -> int:
    with (queue / f"{0:020d}").open("r+b") as file:
        file.seek(20 * 30)
        file.write(bytes(20 * 40))
    return 40


def file_zeroed(queue: Path) -> int:
    (queue / f"{2_000:020d}").write_bytes(bytes(2_000))
    return 100


def file_gone(queue: Path) -> int:
    (queue / f"{4_000:020d}").unlink()
    return 100


def file_of_garbage(queue: Path) -> int:
    (queue / f"{6_000:020d}").write_bytes(bytes(range(250)) * 8)
    return 100


@pytest.mark.parametrize("lose", [units_zeroed, file_zeroed, file_gone, file_of_garbage])
def test_entries_that_are_missing_in_the_middle_are_made_again(
    spark: Any, bench: StoreBench, lose: Callable[[Path], int]
) -> None:
    store = bench.open()
    fill(store, 1_500)
    expected = served(store)
    store.close_now()
    lost = lose(bench.root / "consumequeue" / "TopicTest" / "1")
    assert rebuild(bench.root, dry_run=True, spark=spark).differ == lost
    assert rebuild(bench.root, spark=spark).messages == 1_500
    assert rebuild(bench.root, dry_run=True, spark=spark).differ == 0
    again = bench.open()
    assert [line for line in again.findings if "position.json" not in line] == []
    assert served(again) == expected
    assert again.missing_entries() == 0


def test_groups_go_on_after_a_rebuild_of_a_topic_that_retention_has_emptied(spark: Any, tmp_path: Path) -> None:
    """A group that had read everything gets the next message, at the offset that it expects."""
    keys = {"mappedFileSizeCommitLog": "65536"}
    with SyncCluster(data=tmp_path, broker_keys=keys) as cluster:
        cluster.create_topic("T", 1)
        topics = Topics(cluster.namesrv_address, cluster.run(lambda inner: inner.broker(0).address))
        topics.send("T", 0, [b"%d" % number for number in range(40)])
        with SyncPullConsumer("G", cluster.namesrv_address) as consumer:
            (queue,) = consumer.queues("T")
            consumer.commit(queue, 40)
        topics.fill(1_000, queues=1)
        root = cluster.run(lambda inner: inner.store_root(0))
        cluster.stop_broker(0)
        sorted((root / "commitlog").iterdir())[0].unlink()
        rebuild(root, spark=spark)
        cluster.start_broker(0)
        assert cluster.send(Message("T", b"new")).queue_offset == 40
        with SyncPullConsumer("G", cluster.namesrv_address) as consumer:
            assert consumer.committed(queue) == 40
            result = consumer.pull(queue, 40)
            assert [(message.queue_offset, message.body) for message in result.messages] == [(40, b"new")]
            assert result.min_offset == 40
