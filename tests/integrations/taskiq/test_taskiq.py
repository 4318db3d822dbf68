"""Taskiq with a broker: tasks in this process, and by Taskiq's own command, whose workers die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError
from tests.helpers.waiting import until, wait_for
from tests.integrations.damaged import send_damaged

from cometmq.client import ClientStateError, SimpleConsumer
from cometmq.integrations.names import QueueNameError
from cometmq.integrations.taskiq import CometMQBroker, QueueOptions
from cometmq.testing import Cluster, ProcessCluster

DIRECTORY = Path(__file__).parent


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        yield running


def broker_at(cluster: Cluster, **options: Any) -> CometMQBroker:
    further = options.pop("further_queues", ())
    return CometMQBroker(
        cluster.namesrv_address, further_queues=further, options=QueueOptions(prefix="taskiq", **options)
    )


async def test_tasks_run_once_and_are_acknowledged(cluster: Cluster) -> None:
    seen: list[int] = []
    broker = broker_at(cluster)

    @broker.task
    async def note(number: int) -> None:
        seen.append(number)
        if number == 7:
            raise ValueError("a task that fails is not run again, unless a middleware says so")

    broker.is_worker_process = True
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    for number in range(20):
        await note.kiq(number)
    await until(lambda: len(seen) == 20, timeout_s=20)
    receiver.cancel()
    await asyncio.wait([receiver])
    await broker.shutdown()
    assert sorted(seen) == list(range(20))
    async with SimpleConsumer("taskiq", {"taskiq-default": "*"}, cluster.namesrv_address) as reader:
        assert await reader.receive(wait_s=0) == []


async def test_tasks_wait_in_the_broker_and_urgent_ones_come_first(cluster: Cluster) -> None:
    broker = broker_at(cluster)

    @broker.task
    async def note(text: str) -> None: ...

    await broker.startup()
    began = time.time()
    await note.kicker().with_labels(delay=1.0).kiq("later")
    for priority in (0, 3, 1):
        await note.kicker().with_labels(priority=priority).kiq(f"p{priority}")
    found = [broker.formatter.loads(message.data).args[0] async for message in taken(broker, 4)]
    assert found == ["p3", "p1", "p0", "later"]
    assert time.time() - began >= 1
    await broker.shutdown()


async def taken(broker: CometMQBroker, count: int) -> AsyncIterator[Any]:
    tasks = broker.listen()
    for _ in range(count):
        task = await anext(tasks)
        await task.ack()  # type: ignore[misc]
        yield task
    await tasks.aclose()


async def test_each_queue_has_a_topic_whatever_its_name(cluster: Cluster) -> None:
    broker = broker_at(cluster, further_queues=("näher/dran", "b c"))

    @broker.task
    async def note(text: str) -> None: ...

    broker.is_worker_process = True
    await broker.startup()
    await note.kicker().with_labels(queue_name="näher/dran").kiq("one")
    await note.kicker().with_labels(queue_name="unread").kiq("none")
    found = [broker.formatter.loads(message.data).args[0] async for message in taken(broker, 1)]
    assert found == ["one"]
    assert cluster.has_topic("taskiq-n%C3%A4her%2Fdran")
    assert cluster.has_topic("taskiq-unread")
    await broker.shutdown()


async def test_tasks_that_were_not_begun_are_given_back(cluster: Cluster) -> None:
    broker = broker_at(cluster)

    @broker.task
    async def note(number: int) -> None: ...

    await broker.startup()
    for number in range(4):
        await note.kiq(number)
    tasks = broker.listen()
    await (await anext(tasks)).ack()  # type: ignore[misc]
    await tasks.aclose()
    await broker.shutdown()
    other = broker_at(cluster)
    await other.startup()
    assert len([task async for task in taken(other, 3)]) == 3
    await other.shutdown()


async def test_a_body_that_is_damaged_is_a_dead_letter(cluster: Cluster) -> None:
    """An error would end the worker, each time the message comes again."""
    broker = broker_at(cluster)

    @broker.task
    async def note(text: str) -> None: ...

    await broker.startup()
    await send_damaged(cluster, "taskiq-default")
    await note.kiq("after")
    (task,) = [task async for task in taken(broker, 1)]
    assert broker.formatter.loads(task.data).args == ["after"]
    assert cluster.has_topic("%DLQ%taskiq")
    await broker.shutdown()


async def test_wrong_use_is_an_error(cluster: Cluster) -> None:
    broker = broker_at(cluster)

    @broker.task
    async def note() -> None: ...

    with pytest.raises(SendTaskError) as raised:
        await note.kiq()
    assert isinstance(raised.value.__cause__, ClientStateError)
    await broker.startup()
    wrong: list[dict[str, Any]] = [{"delay": "soon"}, {"delay": "nan"}, {"delay": 1e300}, {"priority": float("inf")}]
    for labels in wrong:
        with pytest.raises(SendTaskError) as raised:
            await note.kicker().with_labels(**labels).kiq()
        assert "must be a number" in str(raised.value.__cause__), labels
    await broker.shutdown()
    with pytest.raises(QueueNameError):
        CometMQBroker(queue_name="x" * 200)
    with pytest.raises(ValueError, match="prefetch"):
        QueueOptions(prefetch=0)


# --- Taskiq's own command ---


@contextmanager
def worker(namesrv: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "taskiq", "worker", "app:broker", "--workers", "1"]
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    process = subprocess.Popen(command, cwd=DIRECTORY, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_task_of_a_worker_that_was_killed_is_soon_run_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    with ProcessCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv_address)
        monkeypatch.syspath_prepend(str(DIRECTORY))
        import app  # type: ignore[import-not-found]

        async def send() -> None:
            await app.broker.startup()
            await app.hang_once.kiq(str(notes))
            await app.broker.shutdown()

        asyncio.run(send())
        with worker(cluster.namesrv_address) as first:
            wait_for(lambda: notes.exists() and "begun" in notes.read_text(), "the task has begun", 60)
            os.killpg(first.pid, signal.SIGKILL)
        with worker(cluster.namesrv_address) as second:
            wait_for(lambda: "done" in notes.read_text(), "another worker has done it", 60)
            second.send_signal(signal.SIGTERM)
            second.wait(60)
    lines = [line.split()[0] for line in notes.read_text().splitlines()]
    assert lines == ["begun", "begun", "done"]
