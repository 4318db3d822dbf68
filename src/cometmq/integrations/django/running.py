"""Runs the task of one message, and says what is to be done with the message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from traceback import format_exception
from typing import Any, Final

from django.db import Error as DatabaseError
from django.utils import timezone

from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.integrations.django import results
from cometmq.integrations.django.api import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from cometmq.integrations.django.connections import close_old_databases
from cometmq.integrations.django.models import StoredTask
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.orders import Order, OrderError, delay_until, read_order
from cometmq.integrations.django.results import Claim

logger: Final = logging.getLogger("cometmq.django")

LONG_WAIT_S: Final = 60.0
"""A message that is early by more than this is sent again with a delay, instead of being kept invisible."""
SHORT_WAIT_S: Final = 1.0
"""A message that is early by less than this waits in the worker."""
SAVE_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between attempts to write a result, before the task is left to be run again."""
MAX_TRACEBACK_CHARS: Final = 100_000


class WorkerLostError(CometMQError):
    """Workers died, or were cut off, while they ran the task."""


class What(Enum):
    """The end of a message's delivery."""

    DONE = "done"
    LATER = "later"
    """Deliver it again after some seconds."""
    DELAY_AGAIN = "delay again"
    """Send the task again with a delay."""
    DEAD = "dead"
    """Make it a dead letter."""


STATES: Final = {What.DONE: "SUCCESSFUL", What.LATER: "failed, runs again later", What.DEAD: "FAILED"}


@dataclass(frozen=True)
class Verdict:
    """The end of a delivery, and its reason."""

    what: What
    seconds: float = 0.0
    reason: str = ""
    order: Order | None = None


@dataclass(frozen=True)
class Delivery:
    """The parts of a message that a task needs."""

    body: bytes
    message_id: str
    number: int
    """1 for the first delivery."""


class Running:
    """Runs tasks for one worker.

    :param sender: the backend's class, the sender of Django's signals.
    :param wait: waits for some seconds, or until the worker stops.
    """

    def __init__(
        self, sender: type, backend: str, options: BackendOptions, worker_id: str, wait: Callable[[float], object]
    ) -> None:
        self._sender = sender
        self._backend = backend
        self._options = options
        self._worker_id = worker_id
        self._wait = wait

    def run(self, delivery: Delivery) -> Verdict:
        """Run a task, unless it is early, has been run or is being run.

        :raises django.db.Error: the database does not answer; the task was not started, or its result is not stored.
        """
        try:
            order = read_order(delivery.body)
        except OrderError as error:
            return Verdict(What.DEAD, reason=str(error))
        early = delay_until(order.run_after)
        if early is not None:
            seconds = early.total_seconds()
            if seconds > LONG_WAIT_S:
                return Verdict(What.DELAY_AGAIN, reason=f"it is due in {seconds:,.0f} s", order=order)
            if seconds > SHORT_WAIT_S:
                return Verdict(What.LATER, seconds, "this machine's clock says that it is early")
            self._wait(seconds)
        if order.stored and self._options.results:
            return self._run_stored(order, delivery)
        if delivery.number > self._options.max_attempts:
            return Verdict(What.DEAD, reason=_lost(delivery.number - 1).message)
        return self._attempt(order, None, delivery.number)

    def _run_stored(self, order: Order, delivery: Delivery) -> Verdict:
        database = self._options.database
        answer, row = results.claim(order, delivery.message_id, self._worker_id, database, self._options.max_attempts)
        if answer is Claim.RUN:
            return self._attempt(order, row, row.attempts)
        if answer is Claim.SPENT:
            error = _lost(row.attempts)
            stated = TaskError(exception_class_path=_path_of(error), traceback=error.message)
            results.fail(row, stated, database)
            return Verdict(What.DEAD, reason=error.message)
        if answer is Claim.MISSING:
            return Verdict(
                What.DEAD,
                reason=f"the database {database!r} has no row of it: it was deleted, or this worker has other settings",
            )
        logger.info("task %s %s is not run again: it is %s", order.id, order.path, answer.value)
        return Verdict(What.DONE)

    def _attempt(self, order: Order, row: StoredTask | None, number: int) -> Verdict:
        begun = SYSTEM_CLOCK.monotonic()
        result = None
        try:
            result = self._started(order, row, number)
            arguments = [TaskContext(task_result=result)] if result.task.takes_context else []
            value = normalize_json(result.task.call(*arguments, *result.args, **result.kwargs))
        except BaseException as error:  # a task may call exit()
            verdict = self._failed(row, result, number, error)
        else:
            _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
            verdict = Verdict(What.DONE)
            self._save(row, result)
            task_finished.send_robust(self._sender, task_result=result)
        logger.info(
            "task %s %s of queue %s: %s in %.3f s, attempt %d%s",
            *(order.id, order.path, order.queue_name, STATES[verdict.what], SYSTEM_CLOCK.monotonic() - begun, number),
            f": {verdict.reason}" if verdict.reason else "",
        )
        return verdict

    def _started(self, order: Order, row: StoredTask | None, number: int) -> Any:
        """Return the result of a task that begins.

        :raises TaskPathError: the task cannot be imported.
        """
        if row is not None:
            result = results.result_of(row)
        else:
            now = timezone.now()
            result = TaskResult(
                task=order.task(self._backend),
                id=order.id,
                status=TaskResultStatus.RUNNING,
                enqueued_at=order.enqueued_at,
                started_at=now,
                last_attempted_at=now,
                finished_at=None,
                args=order.args,
                kwargs=order.kwargs,
                backend=self._backend,
                errors=[],
                worker_ids=["unknown"] * (number - 1) + [self._worker_id],
            )
        task_started.send_robust(self._sender, task_result=result)
        return result

    def _failed(self, row: StoredTask | None, result: Any, number: int, error: BaseException) -> Verdict:
        stated = TaskError(exception_class_path=_path_of(error), traceback=_traceback(error))
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        if result is None:  # the task cannot be imported
            if row is not None:
                results.fail(row, stated, self._options.database)
            return Verdict(What.DEAD, reason=reason)
        result.errors.append(stated)
        pause = self._options.retry_delay_s
        if pause is not None and number < self._options.max_attempts:
            _set(result, status=TaskResultStatus.READY)
            self._save(row, result)
            return Verdict(What.LATER, min(pause * 2.0 ** (number - 1), 86_400.0), reason)
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._save(row, result)
        task_finished.send_robust(self._sender, task_result=result)  # here, where logs have the traceback
        return Verdict(What.DEAD, reason=reason)

    def _save(self, row: StoredTask | None, result: Any) -> None:
        if row is None:
            return
        for pause in (*SAVE_PAUSES_S, None):
            try:
                if not results.save(row, result, self._options.database):
                    logger.warning(
                        "the result of task %s is not stored: another worker has taken the task over, or it was "
                        "deleted; raise max_running_s if it ran longer than that",
                        result.id,
                    )
                return
            except DatabaseError as error:
                if pause is None:
                    raise
                logger.warning("the result of task %s cannot be stored yet: %s", result.id, error)
                close_old_databases()
                self._wait(pause)


def _lost(attempts: int) -> WorkerLostError:
    return WorkerLostError(
        f"the task was started {attempts} times, and no worker reported a result",
        next_step="look for workers that were killed, for example because memory ran out, or raise max_attempts",
    )


def _set(result: Any, **values: Any) -> None:
    """Change a result, which is frozen for applications."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _path_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _traceback(error: BaseException) -> str:
    return "".join(format_exception(error))[-MAX_TRACEBACK_CHARS:]
