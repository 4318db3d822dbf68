"""Synchronous simple consumers: threads, signals, forks, the end of the program."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.client.sync.test_interrupted_takes import interrupted_with_messages

from cometmq.client import ClientStateError, ForkedError, Message, SimpleConsumerConfig
from cometmq.client.sync import SyncSimpleConsumer
from cometmq.testing import SyncCluster

SENT = sorted(b"%d" % number for number in range(200))


@pytest.fixture
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        running.create_topic("orders", queues=4)
        yield running


def consumer(cluster: SyncCluster, **options: Any) -> SyncSimpleConsumer:
    config = SimpleConsumerConfig(**options)
    return SyncSimpleConsumer("workers", {"orders": "*"}, cluster.namesrv_address, config=config)


def test_many_threads_use_one_consumer(cluster: SyncCluster) -> None:
    for body in SENT:
        cluster.send(Message("orders", body))
    found: list[bytes] = []

    def work() -> None:
        for message in reader:
            reader.ack(message)
            found.append(message.body)
            if len(found) == len(SENT):
                reader.stop()

    with consumer(cluster) as reader, ThreadPoolExecutor(8) as threads:
        for worker in [threads.submit(work) for _ in range(8)]:
            worker.result(30)
        assert sorted(found) == SENT
    with consumer(cluster) as reader:
        assert reader.receive(wait_s=0) == []


def test_stop_wakes_a_thread_that_waits(cluster: SyncCluster) -> None:
    with consumer(cluster, wait_s=600) as reader:
        threading.Timer(0.05, reader.stop).start()
        assert reader.receive() == []
        assert list(reader) == []


def test_messages_that_arrive_as_a_signal_raises_come_in_the_next_call(cluster: SyncCluster) -> None:
    cluster.send(Message("orders", b"m"))
    with consumer(cluster, renew_up_to_s=60) as reader:
        for _ in range(3):
            with interrupted_with_messages():
                reader.receive()
        (message,) = reader.receive()
        assert (message.body, message.delivery_attempt) == (b"m", 1)
        reader.ack([message])
        assert reader.receive(wait_s=0) == []


def test_calls_of_a_consumer_that_does_not_run_fail(cluster: SyncCluster) -> None:
    cluster.send(Message("orders", b"m"))
    with consumer(cluster) as reader:
        (message,) = reader.receive()
        reader.change_invisible(message, 5)
        assert reader.topics == {"orders"}
    with pytest.raises(ClientStateError, match="closed"):
        reader.ack(message)
    with pytest.raises(ClientStateError, match="closed"):
        reader.receive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_needs_a_consumer_of_its_own(cluster: SyncCluster) -> None:
    with consumer(cluster) as reader:
        child = os.fork()
        if not child:
            try:
                reader.receive(wait_s=0)
            except ForkedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert reader.receive(wait_s=0) == []
