"""The synchronous consumer of lite topics: messages that arrive just when a signal's handler raises, and its run."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.client.sync.test_interrupted_takes import interrupted_with_messages

from cometmq.client import Message
from cometmq.client.sync import SyncAdmin, SyncLiteTopicConsumer
from cometmq.testing import SyncCluster

SENT = [b"%d" % number for number in range(6)]


@pytest.fixture
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            admin.create_lite_topic("L")
            admin.create_lite_group("G", "L")
        for body in SENT:
            running.send(Message("L", body, lite_topic="a"))
        yield running


def test_an_interrupted_receive_loses_no_message(cluster: SyncCluster) -> None:
    with SyncLiteTopicConsumer("G", "L", namesrv=cluster.namesrv_address) as consumer:
        consumer.subscribe("a")
        for _ in range(3):
            with interrupted_with_messages():
                consumer.receive(2)
            with interrupted_with_messages():
                next(iter(consumer))
        got: list[bytes] = []
        while len(got) < len(SENT):
            for message in consumer.receive(wait_s=30):
                got.append(message.body)
                consumer.ack(message)
        assert got == SENT


def test_run_ends_after_stop(cluster: SyncCluster) -> None:
    got: list[bytes] = []
    has_all = threading.Event()

    def listen(messages: list[Message]) -> None:
        got.extend(message.body for message in messages)
        if len(got) == len(SENT):
            has_all.set()

    consumer = SyncLiteTopicConsumer("G", "L", listen, namesrv=cluster.namesrv_address)  # type: ignore[arg-type]
    consumer.subscribe("a")
    running = threading.Thread(target=consumer.run)
    running.start()
    assert has_all.wait(60)
    consumer.stop()
    running.join(60)
    assert not running.is_alive()
    assert got == SENT
