"""Dramatiq with a broker: workers in this process, and by Dramatiq's own command, whose processes die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, Retry
from dramatiq.middleware import Retries
from tests.helpers.waiting import wait_for
from tests.integrations.damaged import BODY, send_damaged

from cometmq.client import ClientStateError, Message
from cometmq.client.sync import SyncAdmin, SyncPullConsumer
from cometmq.integrations.dramatiq import CometMQBroker, QueueOptions
from cometmq.integrations.dramatiq import broker as broker_module
from cometmq.integrations.names import QueueNameError
from cometmq.testing import ProcessCluster, SyncCluster

DIRECTORY = Path(__file__).parent


@pytest.fixture
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture
def broker(cluster: SyncCluster) -> Iterator[CometMQBroker]:
    made = CometMQBroker(cluster.namesrv_address, options=QueueOptions(prefix="dramatiq", invisible_s=5))
    yield made
    made.close()


@contextmanager
def working(broker: CometMQBroker, **options: Any) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=100, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_messages_are_processed_once(broker: CometMQBroker) -> None:
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def add(number: int) -> None:
        seen.append(number)

    for number in range(50):
        add.send(number)
    with working(broker, worker_threads=4) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert sorted(seen) == list(range(50))


def test_a_message_that_fails_is_repeated_and_then_a_dead_letter(cluster: SyncCluster, broker: CometMQBroker) -> None:
    times: list[float] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=200, max_backoff=300)
    def fail() -> None:
        times.append(time.monotonic())
        raise ValueError("again")

    fail.send()
    with working(broker, worker_threads=2) as worker:
        broker.join("default", timeout=30_000)
        worker.join()
    assert len(times) == 3
    assert times[1] - times[0] >= 0.1  # half of the pause, by chance
    assert [task.actor_name for task in dead_letters(cluster)] == ["fail"]


def dead_letters(cluster: SyncCluster) -> list[Any]:
    with SyncPullConsumer("tools", cluster.namesrv_address) as reader:
        found = [m for queue in reader.queues("%DLQ%dramatiq") for m in reader.pull(queue, 0).messages]
    return [dramatiq.Message.decode(message.body) for message in found]


def test_delayed_messages_wait_in_the_broker_and_join_waits_for_them(broker: CometMQBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(text: str) -> None:
        seen.append(text)

    began = time.monotonic()
    note.send_with_options(args=("later",), delay=1000)
    note.send("now")
    assert broker.get_declared_delay_queues() == set()
    with working(broker) as worker:
        with pytest.raises(QueueJoinTimeout):
            broker.join("default", timeout=300)
        broker.join("default", timeout=20_000)
        worker.join()
    assert seen == ["now", "later"]
    assert time.monotonic() - began >= 1


def test_urgent_messages_come_first(broker: CometMQBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(text: str) -> None:
        seen.append(text)

    @dramatiq.actor(broker=broker, broker_priority=3)
    def shout() -> None:
        seen.append("urgent")

    note.send("p0")
    note.send_with_options(args=("p1",), broker_priority=1)
    shout.send()
    with working(broker, worker_threads=1) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert seen == ["urgent", "p1", "p0"]


def test_a_flushed_queue_is_empty(cluster: SyncCluster, broker: CometMQBroker) -> None:
    @dramatiq.actor(broker=broker, queue_name="at-night")
    def note(number: int) -> None: ...

    for number in range(5):
        note.send(number)
    broker.flush_all()
    broker.join("at-night", timeout=5_000)
    assert next(broker.consume("at-night", timeout=100)) is None
    with SyncAdmin(cluster.namesrv_address) as admin:
        assert "dramatiq-at-night" in admin.topics()
    with pytest.raises(QueueNameError):
        broker.declare_queue("x" * 200)


def test_a_stopped_worker_gives_back_what_it_has_not_begun(broker: CometMQBroker) -> None:
    begun = threading.Event()
    go_on = threading.Event()
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def wait(number: int) -> None:
        seen.append(number)
        begun.set()
        go_on.wait(20)

    for number in range(6):
        wait.send(number)
    with working(broker, worker_threads=1):
        assert begun.wait(20)
        threading.Timer(0.5, go_on.set).start()
    assert len(seen) < 6
    with working(broker) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert sorted(seen) == list(range(6))


def test_a_consumer_has_no_more_messages_than_it_may(broker: CometMQBroker) -> None:
    @dramatiq.actor(broker=broker)
    def note(number: int) -> None: ...

    for number in range(5):
        note.send(number)
    consumer = broker.consume("default", prefetch=2, timeout=200)
    first, second = next(consumer), next(consumer)
    assert first is not None
    assert second is not None
    assert next(consumer) is None
    consumer.ack(first)
    third = next(consumer)
    assert third is not None
    consumer.requeue([second, third])
    consumer.close()


def test_a_message_that_no_actor_takes_is_a_dead_letter(cluster: SyncCluster, broker: CometMQBroker) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    gone: dramatiq.Message[None] = dramatiq.Message("default", "gone", (), {}, {})
    broker.enqueue(gone)
    with working(broker) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert [task.actor_name for task in dead_letters(cluster)] == ["gone"]


def body_with(**fields: Any) -> bytes:
    usual = {"queue_name": "default", "actor_name": "a", "args": [], "kwargs": {}, "options": {}}
    return json.dumps({**usual, **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [b"not from dramatiq", body_with(queue_name="other"), body_with(actor_name=["a"]), body_with(options=None)],
)
def test_a_body_that_is_no_message_is_a_dead_letter(cluster: SyncCluster, broker: CometMQBroker, body: bytes) -> None:
    """A message of another queue would end the thread that processes it."""
    consumer = broker.consume("default", timeout=100)
    cluster.send(Message("dramatiq-default", body))
    assert next(consumer) is None
    with SyncPullConsumer("tools", cluster.namesrv_address) as reader:
        found = [m.body for queue in reader.queues("%DLQ%dramatiq") for m in reader.pull(queue, 0).messages]
    assert found == [body]


def test_a_body_that_is_damaged_is_a_dead_letter(cluster: SyncCluster, broker: CometMQBroker) -> None:
    consumer = broker.consume("default", timeout=100)
    cluster.call(send_damaged(cluster.cluster, "dramatiq-default"))
    assert next(consumer) is None
    with SyncPullConsumer("tools", cluster.namesrv_address) as reader:
        found = [m.stored_body for queue in reader.queues("%DLQ%dramatiq") for m in reader.pull(queue, 0).messages]
    assert found == [BODY]


def test_a_message_whose_repetition_cannot_be_sent_is_not_lost(
    cluster: SyncCluster, broker: CometMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq logs that its middleware has failed, and acknowledges the message."""
    monkeypatch.setattr(broker_module, "UNSENT_S", 0.1)
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=5)
    def work() -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise Retry("later", delay=400 * 365 * 86_400_000)  # brokers accept no such delay

    work.send()
    with working(broker, worker_threads=1) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert attempts == [0, 1]
    with SyncAdmin(cluster.namesrv_address) as admin:
        assert "%DLQ%dramatiq" not in admin.topics()


def test_a_message_that_cannot_be_ended_does_not_count_for_ever(broker: CometMQBroker) -> None:
    """Dramatiq repeats an acknowledgement only after errors of connections."""

    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    note.send()
    consumer = broker.consume("default", prefetch=1, timeout=100)
    message = next(consumer)
    assert message is not None
    broker.close()
    with pytest.raises(ClientStateError):
        consumer.ack(message)
    with pytest.raises(ClientStateError):
        next(consumer)


def test_without_servers_dramatiq_gets_its_own_error() -> None:
    broker = CometMQBroker("127.0.0.1:1", middleware=[Retries()])

    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    with pytest.raises(ConnectionClosed):
        note.send()


FORK = """
import os, sys
from tasks import note
note.send(sys.argv[1], "before")
pid = os.fork()
if pid == 0:
    note.send(sys.argv[1], "child")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
note.send(sys.argv[1], "after")
"""


def test_a_fork_has_connections_of_its_own(cluster: SyncCluster, broker: CometMQBroker) -> None:
    """Bogdanp/dramatiq#162: a web server forks processes that send, after it has loaded the application."""
    seen: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(_path: str, text: str) -> None:
        seen.append(text)

    environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv_address}
    subprocess.run([sys.executable, "-c", FORK, "-"], cwd=DIRECTORY, env=environment, check=True, timeout=60)
    with working(broker) as worker:
        broker.join("default", timeout=20_000)
        worker.join()
    assert sorted(seen) == ["after", "before", "child"]


# --- Dramatiq's own command ---


@contextmanager
def command(namesrv: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "dramatiq", "tasks", "--processes", "1", "--threads", "2"]
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    process = subprocess.Popen(words, cwd=DIRECTORY, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_message_of_a_worker_that_was_killed_is_soon_processed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    with ProcessCluster() as cluster:
        broker = CometMQBroker(cluster.namesrv_address)
        hang_once: dramatiq.Message[None] = dramatiq.Message(
            queue_name="default", actor_name="hang_once", args=(str(notes),), kwargs={}, options={}
        )
        broker.enqueue(hang_once)
        with command(cluster.namesrv_address) as first:
            wait_for(lambda: notes.exists() and "begun" in notes.read_text(), "the message is being processed", 60)
            os.killpg(first.pid, signal.SIGKILL)
        with command(cluster.namesrv_address) as second:
            wait_for(lambda: "done" in notes.read_text(), "another worker has processed it", 60)
            second.send_signal(signal.SIGTERM)
            second.wait(60)
        broker.close()
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["begun", "begun", "done"]
