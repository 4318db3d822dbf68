"""A store with damaged records that CometMQ has mended: Apache reads over what was damaged and loses nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.clients import Client, Series
from tests.interop.systems import Deployment, System

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
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, **SMALL_FILES)
    java.create_topic(deployment.address, deployment.broker.address, "Damaged")
    java.produce(deployment.address, Series("Damaged", COUNT, 0, "d", 300, keys="k{i}"), "sync")
    sent = java.read_topic(deployment.address, "Damaged", COUNT)
    deployment.broker.stop()
    in_order = sorted(sent, key=lambda event: event["commitLogOffset"])
    victims = [in_order[20], in_order[COUNT // 2], in_order[-30]]
    body, header, whole = (int(event["commitLogOffset"]) for event in victims)
    store = deployment.broker.directory / "store"
    damage(store, [(body + 120, 4), (header, 8), (whole, int(victims[2]["storeSize"]))])
    shutil.rmtree(store / "index")

    def others(events: list[dict[str, object]]) -> set[tuple[object, ...]]:
        lost = {event["commitLogOffset"] for event in victims}
        return {
            (event["msgId"], event["queueId"], event["queueOffset"], event["bodySha256"])
            for event in events
            if event["commitLogOffset"] not in lost
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
    # In the places of the damaged ones, of which Apache's units still speak, it gives what stands for them: zeros.
    assert {event["sysFlag"] for event in read if event["commitLogOffset"] in (body, header, whole)} <= {12}
    java.produce(deployment.address, Series("Damaged", 50, 9000, "after", 300, keys="k{i}"), "sync")
    assert len(java.read_topic(deployment.address, "Damaged", COUNT - 3 + 50)) >= COUNT - 3 + 50
    deployment.broker.stop()
    deployment.start_again(System.COMETMQ)
    again = java.read_topic(deployment.address, "Damaged", COUNT - 3 + 50)
    assert others(sent) <= others(again)
    assert len(again) == COUNT - 3 + 50
