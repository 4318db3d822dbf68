"""Queues without a message, whose files we made anew, go on at their offsets with Apache's broker, too."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable

import pytest
from tests.interop.clients import Client, Series, queue_positions, seen
from tests.interop.store.test_file_sizes import SMALL
from tests.interop.systems import BOTH, Deployment, System

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("then", BOTH, ids=lambda system: system.value)
def test_a_queue_that_retention_has_emptied_goes_on_at_its_offset(
    deploy: Callable[..., Deployment], java: Client, then: System
) -> None:
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, autoCreateTopicEnable="false", **SMALL)
    for topic in ("Emptied", "Kept"):
        java.create_topic(deployment.address, deployment.broker.address, topic)
    java.produce(deployment.address, Series("Emptied", 40), "sync")
    ends = Counter(message["queueId"] for message in java.read_topic(deployment.address, "Emptied", 40))
    java.produce(deployment.address, Series("Kept", 900, body_size=3_000), "sync")
    deployment.broker.stop()
    store = deployment.broker.directory / "store"
    min((store / "commitlog").iterdir()).unlink()
    shutil.rmtree(store / "consumequeue" / "Emptied")
    deployment.start_again(System.COMETMQ)
    deployment.broker.stop()
    deployment.start_again(then)
    more = Series("Emptied", 16, 100)
    java.produce(deployment.address, more, "sync")
    stored = java.read_topic(deployment.address, "Emptied", 16)
    assert seen(stored) == sorted(more.expected())
    for queue_id, offsets in queue_positions(stored).items():
        assert offsets == list(range(ends[queue_id], ends[queue_id] + len(offsets)))
