"""Celery workers in processes of their own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery
from kombu import pools
from tests.helpers.waiting import wait_for

ROOT = Path(__file__).parents[3]


class Worker:
    """A worker, whose output is kept."""

    def __init__(self, broker: str, queue: str, log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "celery", "-A", "tests.integrations.kombu.tasks", "worker", "-l", "info"]
        environment = dict(
            os.environ, BROKER=broker, QUEUE=queue, PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{ROOT}"
        )
        environment.pop("PYTHONWARNINGS", None)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options], stdout=output, stderr=output, env=environment, cwd=ROOT, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until_ready(self) -> Self:
        wait_for(lambda: " ready." in self.output or self.process.poll() is not None, "a ready worker")
        assert self.process.poll() is None, self.output
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask for a warm shutdown; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def close_with_results(app: Celery) -> None:
    """Close an application. Celery does not close the connection for its results: it is collected here, and not in the
    middle of another test.
    """
    app.close()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        app._local.__dict__.pop("backend", None)
        gc.collect()


class Workers:
    """Starts workers and stops them at the end; and an application that sends tasks to them."""

    def __init__(self, namesrv: str) -> None:
        self.broker = f"cometmq://{namesrv}"
        self._directory = tempfile.TemporaryDirectory()
        self._started: list[Worker] = []
        self._app: Celery | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._started:
            if worker.process.poll() is None:
                os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
            if error is not None:
                print(worker.output)
        self._directory.cleanup()
        if self._app is not None:
            pools.reset()  # Celery does not close the connections in its pool, either
            close_with_results(self._app)

    def begin(self, queue: str, *options: str) -> Worker:
        """Start a worker whose default queue this is."""
        number = len(self._started)
        log = Path(self._directory.name, f"{number}.log")
        options = ("-n", f"w{number}-{queue}@test", *(options or ("-c", "1")))
        worker = Worker(self.broker, queue, log, *options)
        self._started.append(worker)
        return worker

    def app(self, queue: str) -> Celery:
        """Return the application, which sends to the queue."""
        from tests.integrations.kombu.tasks import app

        self._app = app
        app.conf.update(broker_url=self.broker, task_default_queue=queue)
        for cached in ("queues", "router", "_producer_pool"):
            app.amqp.__dict__.pop(cached, None)
        return app
