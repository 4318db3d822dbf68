"""``manage.py cometmq_worker``: run tasks."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.utils.autoreload import run_with_reloader

from cometmq.errors import CometMQError
from cometmq.integrations.django.api import task_backends
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.connections import logger
from cometmq.integrations.django.models import StoredTask
from cometmq.integrations.django.processes import Processes
from cometmq.integrations.django.worker import Worker, WorkerSettings


class Command(BaseCommand):
    """Run the tasks of a backend until SIGTERM or SIGINT, and its running tasks to their end.

    A second signal, or SIGQUIT, ends them at once; other workers start them again.
    """

    help = "Runs the tasks of a CometMQ backend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="the alias in TASKS (default: default)")
        parser.add_argument(
            "--queue", action="append", metavar="NAME", help="a queue; may be repeated (default: all in QUEUES)"
        )
        parser.add_argument("--threads", type=int, default=1, help="tasks that run at the same time in a process")
        parser.add_argument("--processes", type=int, default=1, help="worker processes, started again if they die")
        parser.add_argument("--burst", action="store_true", help="end when the queues are empty")
        parser.add_argument("--once", action="store_const", const=1, dest="max_tasks", help="end after one task")
        parser.add_argument("--max-tasks", type=int, metavar="N", help="end after N tasks, in each process")
        parser.add_argument(
            "--reload",
            action="store_true",
            help="start again when the project's code changes, for development; a task that runs then is started again",
        )

    def handle(self, **given: Any) -> None:
        """Check the options, then run one worker or several."""
        backend = task_backends[given["backend"]]
        if not isinstance(backend, CometMQBackend):
            raise CommandError(f"TASKS[{given['backend']!r}] is no CometMQ backend: name one with --backend")
        queues = tuple(dict.fromkeys(given["queue"] or sorted(backend.queues)))
        self._check(backend, queues, given)
        settings = WorkerSettings(
            queues=queues,
            threads=given["threads"],
            burst=given["burst"],
            max_tasks=given["max_tasks"],
            ends_with_parent=given["processes"] > 1,
        )
        work = partial(_work, backend, settings)
        try:
            with self._logging(given["verbosity"]):
                if given["reload"]:
                    run_with_reloader(work)
                elif given["processes"] == 1:
                    work()
                else:
                    Processes(given["processes"], work).run()
        except CometMQError as error:
            raise CommandError(str(error)) from error

    @contextmanager
    def _logging(self, verbosity: int) -> Iterator[None]:
        """Write a line for each task to the standard output, unless the project configures the logger itself."""
        if logger.hasHandlers():
            yield
            return
        handler = logging.StreamHandler(self.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        before = logger.level
        logger.setLevel(logging.INFO if verbosity else logging.ERROR)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)

    def _check(self, backend: CometMQBackend, queues: tuple[str, ...], given: dict[str, Any]) -> None:
        for name in ("threads", "processes", "max_tasks"):
            if given[name] is not None and not 1 <= given[name] <= 1_000_000:
                raise CommandError(f"--{name.replace('_', '-')} must be at least 1, not {given[name]}")
        if given["reload"] and (given["processes"] > 1 or given["burst"] or given["max_tasks"] is not None):
            raise CommandError("--reload is for one process that stays: leave out --processes, --burst and --max-tasks")
        if not queues:
            raise CommandError("the backend has no QUEUES: name the queues with --queue")
        other = [name for name in queues if backend.queues and name not in backend.queues]
        if other:
            raise CommandError(
                f"no queue of the backend: {', '.join(map(repr, other))}. Its QUEUES are "
                f"{', '.join(map(repr, sorted(backend.queues)))}"
            )
        try:
            for name in queues:
                backend.settings.topic(name)
            if backend.settings.results:
                StoredTask.objects.using(backend.settings.database).exists()
        except CometMQError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(
                f"the table of results in database {backend.settings.database!r} cannot be read: {error}. "
                "Run manage.py migrate, or set the option results to False"
            ) from error


def _work(backend: CometMQBackend, settings: WorkerSettings) -> None:
    Worker(backend, settings).run()
