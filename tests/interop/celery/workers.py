"""Celery's worker as a process of its own, and the settings that it shares with producers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import process_fields
from tests.helpers.waiting import process_runs, wait_for
from tests.interop import builds
from tests.interop.celery.brokers import Broker
from tests.interop.celery.diary import Diary, Kind

import cometmq

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCE: Final = Path(cometmq.__file__).parents[1]
"""The CometMQ that runs here, also in a tree of its own."""
APP: Final = "tests.interop.celery.tasks"
HOST: Final = "proof"
"""What stands for the name of the machine in the names of workers."""
READY_S: Final = 60.0
STOP_S: Final = 60.0


def settings(broker: Broker, unseen_s: float | None = None, **more: Any) -> dict[str, Any]:
    """Celery's settings for a broker: tasks are acknowledged when they have ended.

    :param unseen_s: see :meth:`Broker.transport_options`.
    """
    return {
        "broker_url": broker.url,
        "broker_transport_options": broker.transport_options(unseen_s),
        "broker_connection_retry_on_startup": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        **more,
    }


def environment(told: Mapping[str, Any], diary: Path) -> dict[str, str]:
    """What processes with the application of :mod:`tests.interop.celery.tasks` need."""
    client = [builds.celery_suites() / "lib"] if told["broker_url"].startswith("redis") else []
    path = os.pathsep.join([str(ROOT), str(SOURCE), *map(str, client)])
    names = {"CELERY_PROOF_SETTINGS": json.dumps(told), "CELERY_PROOF_DIARY": str(diary), "PYTHONPATH": path}
    return {**os.environ, **names}


@dataclass(frozen=True)
class Shape:
    """How a worker runs tasks."""

    pool: str = "prefork"
    concurrency: int = 1
    queues: str = "celery"
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.pool} {self.concurrency}"


@dataclass
class Worker:
    """A worker's process and its children; output and errors go to ``output``."""

    shape: Shape
    environment: Mapping[str, str]
    diary: Diary
    output: Path
    name: str = "worker"
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it."""
        shape = self.shape
        many = ["-P", shape.pool, "-c", str(shape.concurrency), "-Q", shape.queues, "-n", f"{self.name}@{HOST}"]
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", *many, *shape.options]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that consumes."""
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it consumes."""

        def ready() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the worker ended while it started:\n{self.tail()}")
            return any(note.pid == self.pid for note in self.diary.of(Kind.READY))

        try:
            wait_for(ready, "the worker is ready", READY_S)
        except TimeoutError as problem:
            raise TimeoutError(f"{problem}\n{self.tail()}") from None

    def children(self) -> list[int]:
        """The processes of its pool."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(process_fields(process)[1]) == self.pid:
                    found.append(int(process.name))
        return sorted(found)

    @property
    def running(self) -> bool:
        """True while the process that consumes runs."""
        return self._process is not None and self._process.poll() is None

    def ask_to_stop(self) -> None:
        """SIGTERM: it lets running tasks end ("warm shutdown")."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def quit(self) -> None:
        """SIGQUIT: it ends without waiting for tasks ("cold shutdown")."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)

    def stop(self) -> None:
        """A warm shutdown.

        :raises RuntimeError: it does not end.
        """
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the worker does not stop:\n{self.tail()}") from None
        self._process = None

    def kill(self) -> list[int]:
        """SIGKILL to the process that consumes and to its children; the ids of all of them."""
        if self._process is None:
            return []
        killed = [self.pid, *self.children()]
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        wait_for(lambda: not any(map(process_runs, killed)), "its children are gone")
        self._process = None
        return killed

    def tail(self, size: int = 3000) -> str:
        """The end of what it printed."""
        return self.output.read_bytes()[-size:].decode(errors="replace") if self.output.exists() else ""


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """A worker that consumes; it is stopped at the end, or killed when something failed."""
    worker.start()
    try:
        worker.wait_ready()
        yield worker
        worker.stop()
    finally:
        worker.kill()
