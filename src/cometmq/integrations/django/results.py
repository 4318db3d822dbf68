"""Tasks as rows of the table: who may run one, what came of it, and which were never sent.

A row is written in the transaction that enqueues the task, and ``sent_at`` when a broker has accepted its message. A
row without it is an entry of an outbox: ``unsent`` finds it, and a worker sends it.

The row decides whether a message's task runs. READY may be claimed by any message of the task. RUNNING may be claimed
only by the message that claimed it before: this message comes again if its worker died. Other messages of the task are
copies, for example of a send that timed out and was repeated. Each claim raises ``attempts``, and only the worker of
the latest claim can write a result, so that a worker that was thought dead overwrites nothing.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from cometmq.integrations.django.api import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from cometmq.integrations.django.models import StoredTask
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.orders import Order

_CLAIM_ROUNDS: Final = 5


class Claim(Enum):
    """The answer to a worker that wants to run a task."""

    RUN = "run"
    """The task is this worker's now."""
    FINISHED = "finished"
    """The task has a result."""
    ELSEWHERE = "elsewhere"
    """Another message of this task is being worked on."""
    SPENT = "spent"
    """The task was started as often as allowed, and no worker reported a result."""
    MISSING = "missing"
    """The table has no such row."""


@dataclass(frozen=True)
class Attempt:
    """A start of a task."""

    worker_ids: list[str]
    """The workers of all attempts, this one's last."""
    errors: list[Any]
    """The errors of the attempts before."""
    started_at: datetime.datetime
    last_attempted_at: datetime.datetime
    number: int = 1

    def fields(self, message_id: str) -> dict[str, Any]:
        """Return the fields of the row of a task that runs."""
        return {
            "status": TaskResultStatus.RUNNING,
            "attempts": self.number,
            "message_id": message_id,
            "worker_ids": json.dumps(self.worker_ids),
            "started_at": self.started_at,
            "last_attempted_at": self.last_attempted_at,
        }


def add(order: Order, backend: str, database: str) -> None:
    """Write the row of a new task."""
    StoredTask.objects.using(database).create(
        id=order.id,
        path=order.path,
        backend=backend,
        queue_name=order.queue_name,
        priority=order.priority,
        run_after=_as_stored(order.run_after),
        args=json.dumps(order.args),
        kwargs=json.dumps(order.kwargs),
        enqueued_at=_as_stored(order.enqueued_at),
    )


def order_of(row: StoredTask) -> Order:
    """Return the task to run of a row."""
    return Order(
        id=row.id,
        path=row.path,
        args=json.loads(row.args),
        kwargs=json.loads(row.kwargs),
        queue_name=row.queue_name,
        priority=row.priority,
        run_after=row.run_after,
        enqueued_at=row.enqueued_at,
    )


def claim(order: Order, message_id: str, worker_id: str, options: BackendOptions) -> tuple[Claim, Attempt]:
    """Try to make a task this worker's.

    :return: the answer, and the attempt: for ``SPENT`` the last one, and for other answers but ``RUN`` none in
        particular.
    """
    rows = StoredTask.objects.using(options.database)
    attempt = Attempt([worker_id], [], timezone.now(), timezone.now())
    usual = rows.filter(pk=order.id, status=TaskResultStatus.READY, started_at=None)
    if usual.update(sent_at=attempt.started_at, **attempt.fields(message_id)):
        return Claim.RUN, attempt
    for _ in range(_CLAIM_ROUNDS):
        row = rows.filter(pk=order.id).first()
        if row is None:
            return Claim.MISSING, attempt
        errors = [TaskError(**error) for error in json.loads(row.errors)]
        before = Attempt(json.loads(row.worker_ids), errors, row.started_at, row.last_attempted_at, row.attempts)
        answer = _answer(row, message_id, options.max_attempts)
        if answer is not Claim.RUN:
            return answer, before
        now = timezone.now()
        attempt = Attempt([*before.worker_ids, worker_id], errors, row.started_at or now, now, row.attempts + 1)
        unchanged = rows.filter(pk=row.pk, status=row.status, attempts=row.attempts)
        if unchanged.update(sent_at=row.sent_at or now, **attempt.fields(message_id)):
            return Claim.RUN, attempt
    return Claim.ELSEWHERE, attempt  # others change the row all the time


def _answer(row: StoredTask, message_id: str, max_attempts: int) -> Claim:
    if row.status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED):
        return Claim.FINISHED
    if row.status == TaskResultStatus.RUNNING and row.message_id != message_id:
        return Claim.ELSEWHERE
    return Claim.SPENT if row.attempts >= max_attempts else Claim.RUN


def save(result: Any, number: int, database: str) -> bool:
    """Write the outcome of an attempt.

    :return: false if the task is no longer this worker's; its row is as it was.
    """
    rows = StoredTask.objects.using(database).filter(pk=result.id, status=TaskResultStatus.RUNNING, attempts=number)
    return bool(
        rows.update(
            status=result.status,
            finished_at=result.finished_at,
            return_value=json.dumps(result._return_value),
            errors=_errors_as_json(result.errors),
        )
    )


def fail(task_id: str, attempt: Attempt, error: Any, database: str) -> bool:
    """Write that a task has failed without being run; return false if its row has changed meanwhile."""
    rows = StoredTask.objects.using(database).filter(pk=task_id, attempts=attempt.number)
    return bool(
        rows.update(
            status=TaskResultStatus.FAILED,
            finished_at=timezone.now(),
            errors=_errors_as_json([*attempt.errors, error]),
        )
    )


def _errors_as_json(errors: list[Any]) -> str:
    return json.dumps(
        [{"exception_class_path": error.exception_class_path, "traceback": error.traceback} for error in errors]
    )


def sent(task_id: str, database: str) -> None:
    """Write that a broker has the task's message."""
    StoredTask.objects.using(database).filter(pk=task_id).update(sent_at=timezone.now(), send_error="")


def not_sent(task_id: str, reason: str, database: str) -> None:
    """Write why a task's message was not sent."""
    StoredTask.objects.using(database).filter(pk=task_id).update(send_error=reason[:2_000])


def unsent(backend: str, database: str, age: datetime.timedelta, limit: int) -> list[StoredTask]:
    """Return the oldest tasks that were enqueued some time ago, but never sent."""
    rows = StoredTask.objects.using(database).filter(
        backend=backend, status=TaskResultStatus.READY, sent_at=None, enqueued_at__lte=timezone.now() - age
    )
    return list(rows.order_by("enqueued_at")[:limit])


def make_ready(row: StoredTask, database: str) -> bool:
    """Prepare a task to be sent again: its attempts begin anew. Return false if it is running or was successful."""
    rows = StoredTask.objects.using(database).filter(pk=row.pk, status=row.status, attempts=row.attempts)
    if row.status not in (TaskResultStatus.READY, TaskResultStatus.FAILED):
        return False
    return bool(rows.update(status=TaskResultStatus.READY, attempts=0, finished_at=None, sent_at=None))


def result_of(row: StoredTask) -> Any:
    """Return Django's ``TaskResult`` of a row.

    :raises TaskPathError: the task's function cannot be imported.
    """
    result = TaskResult(
        task=order_of(row).task(row.backend),
        id=row.id,
        status=TaskResultStatus[row.status],
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        last_attempted_at=row.last_attempted_at,
        finished_at=row.finished_at,
        args=json.loads(row.args),
        kwargs=json.loads(row.kwargs),
        backend=row.backend,
        errors=[TaskError(**error) for error in json.loads(row.errors)],
        worker_ids=json.loads(row.worker_ids),
    )
    object.__setattr__(result, "_return_value", json.loads(row.return_value))
    return result


def get(task_id: str, backend: str, database: str) -> Any:
    """Return the result of a task.

    :raises TaskResultDoesNotExist: there is no such task.
    :raises TaskPathError: the task's function cannot be imported.
    """
    row = StoredTask.objects.using(database).filter(pk=task_id, backend=backend).first()
    if row is None:
        raise TaskResultDoesNotExist(task_id)
    return result_of(row)


def _as_stored(moment: datetime.datetime | None) -> datetime.datetime | None:
    """Return a time without a time zone for projects with ``USE_TZ = False``, whose databases refuse others."""
    if moment is not None and not settings.USE_TZ and timezone.is_aware(moment):
        return timezone.make_naive(moment)
    return moment
