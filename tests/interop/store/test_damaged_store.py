"""A store with damaged records that CometMQ has mended: Apache reads over what was damaged and loses nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.clients import Client, Series
from tests.interop.systems import Deployment, System

from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore

pytestmark = pytest.mark.interop

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 64),
    "maxHashSlotNum": "100",
    "maxIndexNum": "300",
}
COUNT = 400


def damage(store: Path, places: list[tuple[int, int]]) -> None:
    """Write zeros into the log at these places, of so many bytes."""
    for offset, size in places:
        path = store / "commitlog" / f"{offset // 65536 * 65536:020d}"
        with path.open("r+b") as file:
            file.seek(offset % 65536)
            file.write(bytes(size))


@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
def test_apache_goes_on_with_a_store_that_was_damaged_and_mended(
    deploy: Callable[..., Deployment], java: Client, polite: bool
) -> None:
    """One of the lost messages is the last of its queue, whose files are gone, too."""
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, **SMALL_FILES)
    java.create_topic(deployment.address, deployment.broker.address, "Damaged")
    java.produce(deployment.address, Series("Damaged", COUNT, 0, "d", 300, keys="k{i}"), "sync")
    sent = java.read_topic(deployment.address, "Damaged", COUNT)
    deployment.broker.stop()
    in_order = sorted(sent, key=lambda event: event["commitLogOffset"])
    assert in_order[-2]["queueId"] != in_order[-1]["queueId"]
    victims = [in_order[20], in_order[COUNT // 2], in_order[-2]]
    body, header, whole = (int(event["commitLogOffset"]) for event in victims)
    store = deployment.broker.directory / "store"
    damage(store, [(body + 120, 4), (header, 8), (whole, int(victims[2]["storeSize"]))])
    shutil.rmtree(store / "index")
    shutil.rmtree(store / "consumequeue" / "Damaged")

    def others(events: list[dict[str, object]]) -> set[tuple[object, ...]]:
        lost = {event["commitLogOffset"] for event in victims}
        return {
            (event["msgId"], event["queueId"], event["queueOffset"], event["bodySha256"])
            for event in events
            if event["commitLogOffset"] not in lost and event["sysFlag"] != 12
        }

    deployment.start_again(System.COMETMQ)
    mended = java.read_topic(deployment.address, "Damaged", COUNT - 3)
    assert others(mended) == others(sent)
    assert len(mended) == COUNT - 3
    if polite:
        deployment.broker.stop()
    else:
        deployment.broker.kill()
    deployment.start_again(System.APACHE)
    read = java.read_topic(deployment.address, "Damaged", COUNT - 3)
    assert others(read) == others(sent)
    # Where units lead to the records that stand for damaged ones, Apache gives these: zeros.
    assert {event["sysFlag"] for event in read if event["commitLogOffset"] in (body, header, whole)} <= {12}
    zeros = len([event for event in read if event["sysFlag"] == 12])
    assert 0 < zeros <= 3
    java.produce(deployment.address, Series("Damaged", 50, 9000, "after", 300, keys="k{i}"), "sync")
    assert len(java.read_topic(deployment.address, "Damaged", COUNT - 3 + 50 + zeros)) == COUNT - 3 + 50 + zeros
    deployment.broker.stop()
    deployment.start_again(System.COMETMQ)
    again = java.read_topic(deployment.address, "Damaged", COUNT - 3 + 50)
    assert others(sent) <= others(again)
    assert len(again) == COUNT - 3 + 50


@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
def test_apache_goes_on_with_a_store_that_had_lost_its_end(
    deploy: Callable[..., Deployment], java: Client, polite: bool
) -> None:
    """Neither system gives an offset again that a lost message had."""
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, **SMALL_FILES)
    java.create_topic(deployment.address, deployment.broker.address, "Cut")
    java.produce(deployment.address, Series("Cut", COUNT, 0, "d", 300, keys="k{i}"), "sync")
    sent = java.read_topic(deployment.address, "Cut", COUNT)
    deployment.broker.stop()
    end = max(event["commitLogOffset"] for event in sent)
    ends = {event["queueId"]: max(e["queueOffset"] for e in sent if e["queueId"] == event["queueId"]) for event in sent}
    store = deployment.broker.directory / "store"
    files = sorted(path for path in (store / "commitlog").iterdir() if int(path.name) <= end)
    assert len(files) > 2
    for path in files[-1:] + [p for p in (store / "commitlog").iterdir() if int(p.name) > end]:
        path.unlink()
    with files[-2].open("r+b") as file:
        file.truncate(30_000)
    cut = int(files[-2].name) + 30_000
    left = [event for event in sent if event["commitLogOffset"] + event["storeSize"] <= cut]

    def messages_of(events: list[dict[str, object]]) -> set[tuple[object, ...]]:
        return {(event["msgId"], event["queueId"], event["queueOffset"], event["bodySha256"]) for event in events}

    deployment.start_again(System.COMETMQ)
    assert messages_of(java.read_topic(deployment.address, "Cut", len(left))) == messages_of(left)
    java.produce(deployment.address, Series("Cut", 40, 5000, "comet", 300, keys="k{i}"), "sync")
    if polite:
        deployment.broker.stop()
    else:
        deployment.broker.kill()
    deployment.start_again(System.APACHE)
    java.produce(deployment.address, Series("Cut", 50, 9000, "apache", 300, keys="k{i}"), "sync")
    read = java.read_topic(deployment.address, "Cut", len(left) + 90 + len(ends))
    read = [event for event in read if event["sysFlag"] != 12]  # one record of zeros for each queue
    assert messages_of(left) <= messages_of(read)
    new = [event for event in read if event["commitLogOffset"] > cut]
    assert len(new) == 90
    assert all(event["commitLogOffset"] > end and event["queueOffset"] > ends[event["queueId"]] for event in new)
    deployment.broker.stop()
    deployment.start_again(System.COMETMQ)
    assert messages_of(java.read_topic(deployment.address, "Cut", len(left) + 90)) == messages_of(read)


def test_apache_goes_on_with_a_slaves_store_in_which_a_queue_has_no_message(
    deploy: Callable[..., Deployment], java: Client
) -> None:
    """The messages of the queue are older than the slave's log; new ones get its next offsets, and units."""
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, **SMALL_FILES)
    for topic in ("Young", "Old"):
        java.create_topic(deployment.address, deployment.broker.address, topic, queues=1)
    java.produce(deployment.address, Series("Young", COUNT, 0, "y", 300), "sync")
    deployment.broker.stop()
    root = deployment.broker.directory / "store"
    for path in sorted((root / "commitlog").iterdir())[:2]:
        os.utime(path, (0, 0))
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 64,
        max_hash_slot_num=100,
        max_index_num=300,
    )
    store = MessageStore.open(config)
    assert store.delete_expired_files() == 2
    store.replicated.begin_queue("Old", 0, 40)
    store.close_now()
    deployment.start_again(System.APACHE)
    java.produce(deployment.address, Series("Old", 20, 0, "o", 300), "sync")
    read = java.read_topic(deployment.address, "Old", 20)
    assert [event["queueOffset"] for event in read] == list(range(40, 60))
