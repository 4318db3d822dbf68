"""A stage for what users of Celery have reported: a broker, workers, and an application that sends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.workers import close_with_results
from tests.interop.celery.brokers import Broker
from tests.interop.celery.diary import Diary, Kind
from tests.interop.celery.workers import Shape, Worker, environment, settings, working


class Stage:
    """What one test needs; its queue is its own, so that tests can share a broker."""

    def __init__(self, broker: Broker, directory: Path, queue: str, *, unseen_s: float = 60.0, **more: Any) -> None:
        if broker.url.startswith("cometmq"):
            importlib.import_module("cometmq.integrations.kombu")
        self.broker = broker
        self.queue = queue
        self.directory = directory
        self.diary = Diary(directory / "diary")
        self.settings = settings(broker, unseen_s, task_default_queue=queue, task_ignore_result=True, **more)
        self.app = Celery("reports", set_as_current=False)
        self.app.conf.update(self.settings)
        self._workers = 0

    def worker(self, pool: str = "prefork", concurrency: int = 1, options: Sequence[str] = (), **more: Any) -> Worker:
        """A worker of this queue that is not started."""
        self._workers += 1
        told = environment({**self.settings, **more}, self.diary.path)
        shape = Shape(pool, concurrency, self.queue, tuple(options))
        output = self.directory / f"worker-{self._workers}.log"
        return Worker(shape, told, self.diary, output, f"{self.queue}-{self._workers}")

    @contextmanager
    def working(self, pool: str = "prefork", concurrency: int = 1, **more: Any) -> Iterator[Worker]:
        """A worker of this queue that consumes."""
        with working(self.worker(pool, concurrency, **more)) as worker:
            yield worker

    def send(self, task: str, *arguments: Any, **options: Any) -> str:
        """Send a task; its id."""
        sent: Any = self.app.send_task(task, arguments, **options)
        return str(sent.id)

    def begun(self) -> list[int]:
        """The tasks that have begun, each as often as it has."""
        return self.diary.numbers(Kind.BEGIN)

    def ended(self) -> list[int]:
        """The tasks that have ended, each as often as it has."""
        return self.diary.numbers(Kind.END)

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
        """Wait, and say what has begun and ended if it does not come."""
        try:
            wait_for(condition, what, timeout_s)
        except TimeoutError as problem:
            logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in self.directory.glob("worker-*.log"))
            raise AssertionError(f"{problem}; begun {self.begun()}, ended {self.ended()}\n{logs}") from None

    def ping(self, timeout_s: float = 3.0, limit: int = 1) -> list[str]:
        """The workers that answer."""
        answers: list[dict[str, Any]] = self.app.control.ping(timeout=timeout_s, limit=limit)
        return [name for answer in answers for name in answer]

    def close(self) -> None:
        """End the application's connections."""
        close_with_results(self.app)


@contextmanager
def staged(broker: Broker, directory: Path, queue: str, **more: Any) -> Iterator[Stage]:
    """A stage that is closed at the end."""
    with ExitStack() as undo:
        stage = Stage(broker, directory, queue, **more)
        undo.callback(stage.close)
        yield stage
