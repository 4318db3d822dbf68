"""Workers as processes: killed in the middle, stopped, forked."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import forks
from tests.helpers.pace import is_in_time
from tests.helpers.waiting import wait_for
from tests.integrations.django.project.tasks import add, die, die_once, hold, note

from cometmq.integrations.django.running import WorkerLostError
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.crash

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(broker: SyncCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts workers whose log is in ``worker.log``; kills those that still run in the end."""
    monkeypatch.setenv("TASKS_OPTIONS", json.dumps({"invisible_s": 10}))
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "django", "cometmq_worker", *options]
        with (tmp_path / "worker.log").open("ab") as log:
            started.append(forks.start(command, stdout=log, stderr=log, env=os.environ))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "worker.log").read_text()


def has_lines(file: Path, count: int) -> Callable[[], bool]:
    return lambda: file.exists() and len(file.read_text().splitlines()) >= count


def is_finished(result: Any) -> Callable[[], bool]:
    def refreshed() -> bool:
        result.refresh()
        return bool(result.is_finished)

    return refreshed


@pytest.mark.cometmq(real_time=False)
def test_a_task_of_a_worker_that_was_killed_runs_in_another(broker: SyncCluster, start: Start, tmp_path: Path) -> None:
    """RealOrangeOne/django-tasks#46: tasks of dead workers remained as running for ever."""
    file = tmp_path / "notes"
    killed, other = die_once.enqueue(str(file)), add.enqueue(1, 2)
    assert start().wait(60) == -signal.SIGKILL
    killed.refresh()
    assert killed.status == "RUNNING"
    start()
    wait_for(is_finished(other), "the other task")
    broker.skip(11)
    wait_for(is_finished(killed), "the second attempt")
    assert (killed.status, killed.attempts, killed.return_value) == ("SUCCESSFUL", 2, "survived")
    assert len(set(killed.worker_ids)) == 2


def test_a_task_of_a_worker_that_was_killed_need_not_wait(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its invisible time is an hour, but the broker sees that its connections have closed."""
    monkeypatch.setenv("TASKS_OPTIONS", json.dumps({"invisible_s": 3600}))
    file = tmp_path / "notes"
    workers = {process.pid: process for process in (start("--threads", "2"), start())}
    wait_for(lambda: log_of(tmp_path).count("runs tasks of") == 2, "both workers")
    result = hold.enqueue(str(file), "one")
    wait_for(has_lines(file, 1), "the task")
    result.refresh()
    workers[int(result.worker_ids[0].rsplit("-", 2)[1])].kill()
    wait_for(has_lines(file, 2), "the second attempt", timeout_s=8)
    (tmp_path / "notes.go").touch()
    wait_for(is_finished(result), "its end")
    assert (result.status, result.attempts, len(set(result.worker_ids))) == ("SUCCESSFUL", 2, 2)


@pytest.mark.cometmq(real_time=False)
def test_a_task_that_kills_each_worker_ends(broker: SyncCluster, start: Start, tmp_path: Path) -> None:
    """django-q2/django-q2#303: such a task ran again for ever, whatever max_attempts was."""
    result = die.enqueue(str(tmp_path / "notes"))
    for _ in range(3):
        assert start().wait(60) == -signal.SIGKILL
        broker.skip(11)
    start()
    wait_for(is_finished(result), "the end")
    assert (result.status, result.attempts) == ("FAILED", 3)
    assert result.errors[-1].exception_class is WorkerLostError
    assert "started 3 times" in result.errors[-1].traceback
    assert has_lines(tmp_path / "notes", 3)()


@pytest.mark.cometmq(real_time=False)
def test_with_one_attempt_a_task_is_started_once(
    broker: SyncCluster, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_OPTIONS", json.dumps({"invisible_s": 10, "max_attempts": 1}))
    result = die.enqueue(str(tmp_path / "notes"))
    assert start().wait(60) == -signal.SIGKILL
    broker.skip(11)
    start()
    wait_for(is_finished(result), "the end")
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert (tmp_path / "notes").read_text() == "attempt\n"


def test_a_stopped_worker_finishes_its_task_and_takes_no_other(start: Start, tmp_path: Path) -> None:
    """celery/celery#2700: SIGTERM ended tasks at once."""
    file = tmp_path / "notes"
    running = hold.enqueue(str(file), "one")
    worker = start()
    wait_for(has_lines(file, 1), "the first task")
    waiting = note.enqueue(str(file), "two")
    worker.send_signal(signal.SIGTERM)
    (tmp_path / "notes.go").touch()
    assert worker.wait(60) == 0
    running.refresh()
    waiting.refresh()
    assert (running.status, waiting.status) == ("SUCCESSFUL", "READY")
    assert "Traceback" not in log_of(tmp_path)


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM, signal.SIGTERM], [signal.SIGQUIT], [signal.SIGINT, signal.SIGINT]]
)
def test_a_worker_that_must_end_at_once_gives_its_task_back(
    start: Start, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    file = tmp_path / "notes"
    result = hold.enqueue(str(file), "one")
    worker = start("--threads", "2")
    wait_for(has_lines(file, 1), "the task")
    for number in signals:
        worker.send_signal(number)
        wait_for(lambda: "is stopping" in log_of(tmp_path) or worker.poll() is not None, "the worker's answer")
    assert worker.wait(60) == 128 + signals[-1]
    (tmp_path / "notes.go").touch()
    start()
    wait_for(is_finished(result), "the second attempt", timeout_s=8)  # long before it becomes visible by itself
    assert (result.status, result.attempts) == ("SUCCESSFUL", 2)


def test_tasks_run_in_threads_at_the_same_time(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    held = [hold.enqueue(str(file), str(number)) for number in range(4)]
    start("--threads", "3")
    wait_for(has_lines(file, 3), "three tasks at the same time")
    (tmp_path / "notes.go").touch()
    for result in held:
        wait_for(is_finished(result), "a task")


def test_a_worker_process_that_dies_is_replaced_and_all_are_stopped(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    held = [hold.enqueue(str(file), str(number)) for number in range(2)]
    parent = start("--processes", "2")
    wait_for(has_lines(file, 2), "both processes")
    for result in held:
        result.refresh()
    pids = [int(result.worker_ids[0].rsplit("-", 2)[1]) for result in held]
    assert len({*pids, parent.pid}) == 3
    os.kill(pids[0], signal.SIGKILL)
    after = add.enqueue(1, 2)
    wait_for(is_finished(after), "a task in the new process")
    (tmp_path / "notes.go").touch()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    assert f"worker process {pids[0]} has ended by signal 9; another one starts" in log_of(tmp_path)


def test_a_worker_that_must_end_at_once_does_not_wait_for_a_broker_for_each_task(
    start: Start, tmp_path: Path, broker: SyncCluster
) -> None:
    file = tmp_path / "notes"
    for number in range(5):
        hold.enqueue(str(file), str(number))
    worker = start("--threads", "5")
    wait_for(has_lines(file, 5), "five tasks")
    broker.stop_broker(0)
    began = time.monotonic()
    worker.send_signal(signal.SIGQUIT)
    assert worker.wait(60) == 128 + signal.SIGQUIT
    assert is_in_time(time.monotonic() - began, 12)


DYING = """
import os, signal, sys, time, types, django
django.setup()
from cometmq.integrations.django import processes

def work():
    with open(sys.argv[1], "a") as file:
        file.write("started\\n")
    raise ValueError("it cannot work")

def stopped_meanwhile(seconds):
    os.kill(os.getpid(), signal.SIGTERM)

processes.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=stopped_meanwhile)
processes.Processes(1, work).run()
"""


def test_a_worker_process_that_dies_while_all_are_stopped_is_not_replaced(database: Path, tmp_path: Path) -> None:
    """The new process would never get the signal, and the command would not end."""
    file = tmp_path / "notes"
    subprocess.run([sys.executable, "-c", DYING, str(file)], env=os.environ, check=True, timeout=60)
    assert file.read_text() == "started\n"


def test_a_worker_waits_for_a_broker_and_names_the_reason(start: Start, tmp_path: Path, broker: SyncCluster) -> None:
    result = add.enqueue(1, 2)
    broker.stop_broker(0)
    worker = start()
    wait_for(lambda: "tries again in" in log_of(tmp_path), "the reason")
    broker.start_broker(0)
    wait_for(is_finished(result), "the task")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


FORK = """
import os, sys, django
django.setup()
from tests.integrations.django.project.tasks import note
note.enqueue(sys.argv[1], "parent before")
pid = os.fork()
if pid == 0:
    note.enqueue(sys.argv[1], "child")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
note.enqueue(sys.argv[1], "parent after")
"""


def test_a_fork_has_connections_of_its_own(start: Start, tmp_path: Path) -> None:
    """PostHog/posthog-python#290: nothing was sent after the fork of a server that loads the application before."""
    file = tmp_path / "notes"
    subprocess.run([sys.executable, "-c", FORK, str(file)], env=os.environ, check=True, timeout=60)
    start()
    wait_for(has_lines(file, 3), "three tasks")
    assert sorted(file.read_text().splitlines()) == ["child", "parent after", "parent before"]


MODULE = """
from pathlib import Path
from tests.integrations.django.project.decorator import task

@task()
def version(file):
    Path(file).write_text("{}")
"""


def test_a_worker_starts_again_when_the_code_changes(
    broker: SyncCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RealOrangeOne/django-tasks#105: during development, a worker ran the code of yesterday."""
    notes, module = tmp_path / "notes", tmp_path / "changing_tasks.py"
    module.write_text(MODULE.format("old"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    task = importlib.import_module("changing_tasks").version
    command = [sys.executable, "-m", "django", "cometmq_worker", "--reload"]
    with (tmp_path / "worker.log").open("ab") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ, start_new_session=True)
    try:
        task.enqueue(str(notes))
        wait_for(lambda: notes.exists() and notes.read_text() == "old", "the first task")

        def is_reloaded() -> bool:
            module.write_text(MODULE.format("changed"))  # Django looks each second, and must have seen the file before
            return log_of(tmp_path).count("runs tasks of") == 2

        wait_for(is_reloaded, "another worker")
        wait_for(is_finished(task.enqueue(str(notes))), "a task by the new code")
        assert notes.read_text() == "changed"
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        worker.wait(60)
