"""Celery's workers: what they do with tasks, and that nothing is lost or done twice."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from kombu import Connection
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.tasks import add, again, not_at_once, now, poison, until_file
from tests.integrations.kombu.workers import Workers

import cometmq.integrations.kombu  # noqa: F401
from cometmq.testing import ProcessCluster, SyncCluster

PATIENCE_S = 30
BACKLOG = 500


def test_tasks_delays_and_remote_control(workers: Workers, name: str) -> None:
    app = workers.app(name)
    worker = workers.begin(name, "-c", "2").until_ready()
    assert add.delay(1, 2).get(timeout=PATIENCE_S) == 3
    assert chain(add.s(1, 2), add.s(3))().get(timeout=PATIENCE_S) == 6
    assert sum(group(add.s(n, n) for n in range(10))().get(timeout=PATIENCE_S)) == 90
    assert again.delay(2).get(timeout=PATIENCE_S) == 2

    due = time.time() + 0.5
    assert now.apply_async(countdown=0.5).get(timeout=PATIENCE_S) >= due - 0.002

    node = f"w0-{name}@test"
    assert app.control.ping(destination=[node], timeout=PATIENCE_S) == [{node: {"ok": "pong"}}]
    (queues,) = app.control.inspect([node], timeout=PATIENCE_S).active_queues().values()
    assert [queue["name"] for queue in queues] == [name]
    app.control.add_consumer(f"{name}.more", destination=[node], reply=True, timeout=PATIENCE_S)
    assert add.apply_async((3, 4), queue=f"{name}.more").get(timeout=PATIENCE_S) == 7
    assert worker.stop() == 0
    assert "Traceback" not in worker.output


def test_a_revoked_task_is_recalled_also_without_a_worker(workers: Workers, name: str) -> None:
    app = workers.app(name)
    results = [add.apply_async((1, 1), countdown=seconds) for seconds in (600, 3600)]
    for result in results:
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
    with app.connection_for_write() as connection:
        assert connection.SimpleQueue(name).qsize() == 0


@pytest.mark.crash
def test_a_task_comes_again_soon_after_its_worker_was_killed(workers: Workers, name: str, tmp_path: Path) -> None:
    workers.app(name)
    first = workers.begin(name)
    second = workers.begin(name)
    first.until_ready()
    go = tmp_path / "go"
    result = until_file.delay(str(go))
    begun = Path(f"{go}.begun")
    wait_for(begun.exists, "a task that runs")
    second.until_ready()
    victim = int(begun.read_text())
    begun.unlink()
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(begun.exists, "the task of the killed worker")
    assert time.monotonic() - killed < 3  # 0.7 s on an idle machine
    go.touch()
    assert result.get(timeout=PATIENCE_S) is True


def test_a_requeued_task_does_not_wait_behind_the_others(workers: Workers, name: str) -> None:
    app = workers.app(name)
    requeued = not_at_once.delay()
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(BACKLOG):
            add.apply_async((number, number), producer=producer, ignore_result=True)
    worker = workers.begin(name)
    wait_for(lambda: f"{requeued.id}] succeeded" in worker.output, "the requeued task")
    before, _, _ = worker.output.partition(f"{requeued.id}] succeeded")
    assert before.count("] succeeded") < BACKLOG // 5  # 0 on an idle machine


@pytest.mark.crash
def test_a_task_that_kills_its_workers_is_a_dead_letter_in_the_end(
    cluster: SyncCluster, workers: Workers, name: str
) -> None:
    app = workers.app(name)
    worker = workers.begin(name).until_ready()
    poison.delay()
    wait_for(lambda: "is now a dead letter" in worker.output, "a dead letter")
    assert worker.output.count("exited prematurely") >= 3
    assert add.delay(1, 2).get(timeout=PATIENCE_S) == 3
    assert app.control.inspect([f"w0-{name}@test"], timeout=PATIENCE_S).active() is not None


@pytest.mark.crash
def test_brokers_that_restart_lose_no_task(tmp_path: Path) -> None:
    with ProcessCluster(data=tmp_path) as cluster, Workers(cluster.namesrv_address) as workers:
        workers.app("restarted")
        worker = workers.begin("restarted").until_ready()
        late = add.apply_async((0, 0), countdown=3)
        go = tmp_path / "go"
        running = until_file.delay(str(go))
        wait_for(Path(f"{go}.begun").exists, "a task that runs")
        waiting = [add.delay(n, n) for n in range(10)]
        cluster.kill_broker(0)
        cluster.start_broker(0)
        go.touch()
        sent = [late.id, running.id, *(result.id for result in waiting)]
        wait_for(lambda: all(re.search(rf"{task}\] succeeded", worker.output) for task in sent), "all tasks")
        assert [worker.output.count(f"{task}] received") for task in sent] == [1] * len(sent)


def test_a_warm_shutdown_gives_back_what_has_not_begun(workers: Workers, name: str, tmp_path: Path) -> None:
    workers.app(name)
    first = workers.begin(name)
    first.until_ready()
    go = tmp_path / "go"
    running = until_file.delay(str(go))
    wait_for(Path(f"{go}.begun").exists, "a task that runs")
    prefetched = add.delay(1, 2)
    first.process.send_signal(signal.SIGTERM)
    second = workers.begin(name)
    wait_for(lambda: "Warm shutdown" in first.output, "a warm shutdown")
    go.touch()
    assert first.process.wait(PATIENCE_S) == 0
    assert running.get(timeout=PATIENCE_S) is False
    assert prefetched.get(timeout=PATIENCE_S) == 3
    assert second.output.count("until_file") == 1  # only in the list of tasks


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools(workers: Workers, name: str, pool: str) -> None:
    workers.app(name)
    worker = workers.begin(name, "-P", pool, "-c", "2").until_ready()
    assert sum(group(add.s(n, n) for n in range(10))().get(timeout=PATIENCE_S)) == 90
    assert worker.stop() == 0


def test_a_forked_child_has_connections_of_its_own(cluster: SyncCluster, name: str) -> None:
    with Connection(f"cometmq://{cluster.namesrv_address}") as connection:
        queue = connection.SimpleQueue(name)
        queue.put("parent")
        child = os.fork()
        if child == 0:
            try:
                connection.SimpleQueue(name).put("child")
                connection.release()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        queue.put("parent again")
        assert sorted(queue.get(timeout=PATIENCE_S).payload for _ in range(3)) == ["child", "parent", "parent again"]
