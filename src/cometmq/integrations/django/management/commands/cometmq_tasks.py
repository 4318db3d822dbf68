"""``manage.py cometmq_tasks``: count the tasks of each queue, send unsent ones, delete old ones."""

from __future__ import annotations

import datetime
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Count, Q
from django.utils import timezone

from cometmq.errors import CometMQError
from cometmq.integrations.django import results
from cometmq.integrations.django.api import TaskResultStatus, task_backends
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.connections import is_away
from cometmq.integrations.django.models import StoredTask

_ALL: Final = 1_000_000
_AT_ONCE: Final = 500


class Command(BaseCommand):
    """Show the tasks of a backend by queue and state."""

    help = "Counts the tasks of a CometMQ backend; sends tasks that were not sent; deletes old ones."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="the alias in TASKS (default: default)")
        parser.add_argument(
            "--send-unsent", action="store_true", help="send tasks that were enqueued while no broker answered"
        )
        parser.add_argument(
            "--delete-finished", type=float, metavar="DAYS", help="delete tasks that ended more than DAYS days ago"
        )

    def handle(self, **given: Any) -> None:
        """Change what was asked for, then show the tasks."""
        backend = task_backends[given["backend"]]
        if not isinstance(backend, CometMQBackend) or not backend.settings.results:
            raise CommandError(f"TASKS[{given['backend']!r}] is no CometMQ backend with a table of results")
        if given["send_unsent"]:
            self._send_unsent(backend)
        if given["delete_finished"] is not None:
            self._delete_finished(backend, given["delete_finished"])
        self._show(backend)

    def _send_unsent(self, backend: CometMQBackend) -> None:
        refused = 0
        for row in results.unsent(backend.alias, backend.settings.database, datetime.timedelta(), _ALL):
            failure = backend.send(results.order_of(row))
            if is_away(failure):
                raise CommandError(f"task {row.id} is not sent: {failure}")
            refused += failure is not None
            self.stdout.write(f"task {row.id} {row.path} is {'sent' if failure is None else f'not sent: {failure}'}")
        if refused:
            raise CommandError(f"{refused} tasks are not sent")

    def _delete_finished(self, backend: CometMQBackend, days: float) -> None:
        if not 0 <= days <= 36_500:
            raise CommandError(f"--delete-finished must be from 0 to 36,500 days, not {days:g}")
        before = timezone.now() - datetime.timedelta(days=days)
        rows = StoredTask.objects.using(backend.settings.database).order_by()
        old = rows.filter(backend=backend.alias, finished_at__lt=before).values_list("pk", flat=True)
        deleted = 0
        while keys := list(old[:_AT_ONCE]):  # one DELETE of millions of rows would hold up all tasks
            deleted += rows.filter(pk__in=keys).delete()[0]
        self.stdout.write(f"{deleted} tasks are deleted")

    def _show(self, backend: CometMQBackend) -> None:
        rows = StoredTask.objects.using(backend.settings.database).filter(backend=backend.alias)
        states = {state: Count("pk", filter=Q(status=state)) for state in TaskResultStatus.values}
        unsent = Count("pk", filter=Q(status=TaskResultStatus.READY, sent_at=None))
        counts = {
            line["queue_name"]: line for line in rows.order_by().values("queue_name").annotate(unsent=unsent, **states)
        }
        self.stdout.write(" ".join(f"{name:>10}" for name in (*states, "unsent")) + "  queue (topic)")
        for queue in sorted({*backend.queues, *counts}):
            line = counts.get(queue, {})
            try:
                topic = backend.settings.topic(queue)
            except CometMQError as error:
                topic = error.message
            numbers = " ".join(f"{line.get(name, 0):>10}" for name in (*states, "unsent"))
            self.stdout.write(f"{numbers}  {queue} ({topic})")
