"""Celery, Taskiq and Dramatiq over a broker of Apache RocketMQ 5.5: workers run, die and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from tests.helpers.waiting import wait_for
from tests.interop import builds
from tests.interop.celery.brokers import Apache, started
from tests.interop.celery.reports import staged
from tests.interop.conftest import unavailable

from cometmq.client.sync import SyncAdmin, SyncSimpleConsumer

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]

UNSEEN_S = 3.0
"""A task of a worker that has gone comes again after so long."""
INTEGRATIONS = Path(__file__).parents[2] / "integrations"
FRAMEWORKS = {
    "taskiq": (
        ("-m", "taskiq", "worker", "app:broker", "--workers", "1"),
        "import asyncio, json, sys, app\n"
        "async def send():\n"
        "    await app.broker.startup()\n"
        "    for task, arguments, seconds in json.loads(sys.argv[1]):\n"
        "        await getattr(app, task).kicker().with_labels(delay=seconds).kiq(*arguments)\n"
        "    await app.broker.shutdown()\n"
        "asyncio.run(send())\n",
    ),
    "dramatiq": (
        ("-m", "dramatiq", "tasks", "--processes", "1", "--threads", "2"),
        "import json, sys, tasks\n"
        "for task, arguments, seconds in json.loads(sys.argv[1]):\n"
        "    getattr(tasks, task).send_with_options(args=arguments, delay=seconds * 1000 or None)\n"
        "tasks.dramatiq.get_broker().close()\n",
    ),
}
"""The command of a worker, and a program that sends tasks."""


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    try:
        with started("apache", tmp_path_factory.mktemp("apache")) as running:
            assert isinstance(running, Apache)
            yield running
    except builds.ToolMissingError as problem:
        unavailable(problem)


def test_celery_s_tasks_run_once_and_again_when_their_worker_was_killed(apache: Apache, tmp_path: Path) -> None:
    with staged(apache, tmp_path, "killed", unseen_s=UNSEEN_S) as stage:
        with stage.working() as first:
            assert stage.ping() == ["killed-1@proof"]
            for number in range(5):
                stage.send("begin", number)
            stage.wait(lambda: len(stage.begun()) == 5, "the tasks begin")
            stage.send("die_once", 5)
            stage.wait(lambda: stage.ended() == [5], "the task of a killed process ends")
            stage.send("work", 6, 3600.0)
            stage.wait(lambda: 6 in stage.begun(), "the long task begins")
            first.kill()
        killed = time.monotonic()
        with stage.working() as second:
            stage.wait(lambda: stage.begun().count(6) == 2, "the task of the killed worker begins", 5 * UNSEEN_S)
            assert time.monotonic() - killed < 4 * UNSEEN_S
            second.kill()
        assert sorted(stage.begun()) == [0, 1, 2, 3, 4, 5, 5, 6, 6], "a task that was acknowledged came again"


def test_celery_s_times_are_kept_and_what_apache_lacks_is_told(
    apache: Apache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with staged(apache, tmp_path, "times", unseen_s=UNSEEN_S) as stage, stage.working():
        due = time.time() + 4
        revoked = stage.send("begin", 1, countdown=3)
        stage.send("begin", 2, countdown=4)
        stage.app.control.revoke(revoked)
        assert "recall" in caplog.text, "Apache's broker recalls nothing unless it is told to"
        with pytest.raises(OperationalError, match="timerMaxDelaySec"):
            stage.send("begin", 3, countdown=4 * 86_400)
        stage.wait(lambda: 2 in stage.begun(), "the task with a time begins")
        assert time.time() >= due - 0.002
        assert stage.begun() == [2], "the worker has run the revoked task"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tasks_run_once_and_again_when_their_worker_was_killed(apache: Apache, tmp_path: Path, framework: str) -> None:
    words, program = FRAMEWORKS[framework]
    notes, deaths = tmp_path / "notes", tmp_path / "deaths"
    notes.touch()
    deaths.touch()
    told = {"NAMESRV_ADDR": apache.deployment.address, "INVISIBLE_S": str(UNSEEN_S)}
    directory, environment = INTEGRATIONS / framework, {**os.environ, **told}

    def send(*tasks: tuple[str, list[str], float]) -> str:
        command = [sys.executable, "-c", program, json.dumps(tasks)]
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr

    @contextmanager
    def working() -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, *words]
        process = subprocess.Popen(command, cwd=directory, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    texts = [f"t{number}" for number in range(10)]
    due = time.time() + 3
    assert not send(*(("note", [str(notes), text], 0) for text in texts), ("note", [str(notes), "later"], 3))
    assert "timerMaxDelaySec" in send(("note", [str(notes), "never"], 4 * 86_400))
    assert not send(("hang_once", [str(deaths)], 0))
    with working() as first:
        wait_for(lambda: {*texts, "later"} <= {*_words(notes)}, "all have run", 60)
        assert time.time() >= due - 0.002
        wait_for(lambda: "begun" in deaths.read_text(), "it has begun", 60)
        os.killpg(first.pid, signal.SIGKILL)
    with working() as second:
        wait_for(lambda: "done" in deaths.read_text(), "another worker has done it", 60)
        second.send_signal(signal.SIGTERM)
        second.wait(60)
    assert _words(deaths) == ["begun", "begun", "done"]
    assert sorted(_words(notes)) == sorted([*texts, "later"])
    assert not _left(apache, framework)


def _words(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines()]


def _left(apache: Apache, group: str) -> list[Any]:
    """The messages that the group still has to get, and its dead letters."""
    address = apache.deployment.address
    with SyncAdmin(address) as admin:
        dead = [name for name in admin.topics() if name == f"%DLQ%{group}"]
    with SyncSimpleConsumer(group, {f"{group}-default": "*"}, address) as reader:
        return [*dead, *reader.receive(wait_s=2)]
