"""Celery's own commands and settings of workers with CometMQ."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.celery.brokers import Broker, started
from tests.interop.celery.diary import Kind
from tests.interop.celery.reports import staged
from tests.interop.celery.workers import APP, ROOT, Shape, Worker, working

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with started("cometmq", tmp_path_factory.mktemp("broker")) as running:
        yield running


def celery(worker: Worker, *words: str) -> str:
    """Run a command of Celery; return what it prints."""
    command = [sys.executable, "-m", "celery", "-A", APP, *words]
    environment = dict(worker.environment)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False, input=""
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_see_a_worker_and_change_it(broker: Broker, tmp_path: Path) -> None:
    options = ("--autoscale", "3,1")
    with staged(broker, tmp_path, "commands") as stage, stage.working(options=options) as worker:
        name = "commands-1@proof"
        assert f"{name}: OK" in celery(worker, "status")
        assert "'name': 'commands'" in celery(worker, "inspect", "active_queues")
        for number in range(3):
            stage.send("work", number, 3.0)
        stage.wait(lambda: len(stage.begun()) == 3, "the pool has grown")
        assert stage.ended() == []
        assert "new rate limit set" in celery(worker, "control", "rate_limit", "begin", "2/s")
        stage.wait(lambda: len(stage.ended()) == 3, "the tasks end")
        for number in range(10, 16):
            stage.send("begin", number)
        stage.wait(lambda: len(stage.begun()) == 9, "the limited tasks begin")
        times = [note.at for note in stage.diary.of(Kind.BEGIN) if note.number >= 10]
        assert times[-1] - times[0] > 1.5


def test_the_command_purge_removes_what_waits(broker: Broker, tmp_path: Path) -> None:
    with staged(broker, tmp_path, "purge") as stage:
        for number in range(7):
            stage.send("begin", number)
        assert "Purged 7 messages" in celery(stage.worker(), "purge", "-f")


@pytest.mark.parametrize("soft_s", [0.0, 5.0])
def test_a_cold_shutdown_gives_back_the_task_that_runs(broker: Broker, tmp_path: Path, soft_s: float) -> None:
    """With ``worker_soft_shutdown_timeout``, tasks may end before."""
    with staged(broker, tmp_path, f"cold{soft_s}", worker_soft_shutdown_timeout=soft_s) as stage:
        first = stage.worker(concurrency=2)
        first.start()
        try:
            first.wait_ready()
            stage.send("work", 1, 60.0)
            stage.send("work", 2, 1.0 if soft_s else 60.0)
            stage.wait(lambda: sorted(stage.begun()) == [1, 2], "both begin")
            first.quit()
            stage.wait(lambda: not first.running, "the worker ends")
        finally:
            first.kill()
        assert stage.ended() == ([2] if soft_s else [])
        with stage.working(concurrency=2) as second:
            stage.wait(lambda: stage.begun().count(1) == 2, "the task comes again", 10.0)
            if not soft_s:
                stage.wait(lambda: stage.begun().count(2) == 2, "the other comes again, too", 10.0)
            second.kill()
        assert stage.begun().count(2) == (1 if soft_s else 2)


def test_a_worker_reads_three_hundred_queues(broker: Broker, tmp_path: Path) -> None:
    names = [f"many{number}" for number in range(300)]
    with staged(broker, tmp_path, "many") as stage:
        worker = stage.worker()
        worker.shape = Shape("solo", 1, ",".join(names))
        with working(worker):
            for number, name in enumerate(names):
                stage.send("begin", number, queue=name)
            stage.wait(lambda: len(stage.begun()) >= len(names), "all begin", 60.0)
        assert sorted(stage.begun()) == list(range(len(names)))
