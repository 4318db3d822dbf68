"""Runs the task of one message, and says what is to be done with the message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from traceback import format_exception
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import connections
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
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.orders import Order, OrderError, delay_until, read_order
from cometmq.integrations.django.results import Attempt, Claim
from cometmq.integrations.names import QueueNameError
from cometmq.visible import visible

logger: Final = logging.getLogger("cometmq.django")

LONG_WAIT_S: Final = 60.0
"""A message that is early by more than this is sent again with a delay, instead of being kept invisible."""
SHORT_WAIT_S: Final = 1.0
"""A message that is early by less than this waits in the worker."""
SAVE_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between attempts to write a result, before the task is left to be run again."""
MAX_RETRY_DELAY_S: Final = 86_400.0
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
            self._options.topic(order.queue_name)
        except (OrderError, QueueNameError) as error:
            return Verdict(What.DEAD, reason=str(error))
        is_stored = order.stored and self._options.results
        early = delay_until(order.run_after)
        if early is not None:
            seconds = early.total_seconds()
            if seconds > LONG_WAIT_S or (seconds > SHORT_WAIT_S and not is_stored):  # a delivery counts as an attempt
                return Verdict(What.DELAY_AGAIN, reason=f"it is due in {seconds:,.0f} s", order=order)
            if seconds > SHORT_WAIT_S:
                return Verdict(What.LATER, seconds, "this machine's clock says that it is early")
            self._wait(seconds)
        if is_stored:
            return self._run_stored(order, delivery)
        if delivery.number > self._options.max_attempts:
            return Verdict(What.DEAD, reason=_lost(delivery.number - 1).message)
        now = timezone.now()
        workers = ["unknown"] * (delivery.number - 1) + [self._worker_id]
        return self._run(order, Attempt(workers, [], now, now, delivery.number), stored=False)

    def _run_stored(self, order: Order, delivery: Delivery) -> Verdict:
        answer, attempt = results.claim(order, delivery.message_id, self._worker_id, self._options)
        if answer is Claim.RUN:
            return self._run(order, attempt, stored=True)
        if answer is Claim.SPENT:
            error = _lost(attempt.number)
            stated = TaskError(exception_class_path=_path_of(error), traceback=error.message)
            results.fail(order.id, attempt, stated, self._options.database)
            return Verdict(What.DEAD, reason=error.message)
        if answer is Claim.MISSING:
            return Verdict(
                What.DEAD,
                reason=f"the database {self._options.database!r} has no row of task {order.id}: it was deleted, or "
                "this worker has other settings",
            )
        logger.info("task %s is not run again: it is %s", visible(order.id), answer.value)
        return Verdict(What.DONE)

    def _run(self, order: Order, attempt: Attempt, *, stored: bool) -> Verdict:
        begun = SYSTEM_CLOCK.monotonic()
        result = None
        try:
            result = self._started(order, attempt)
            arguments = [TaskContext(task_result=result)] if result.task.takes_context else []
            value = normalize_json(result.task.call(*arguments, *result.args, **result.kwargs))
        except BaseException as error:  # a task may call exit()
            stated = TaskError(exception_class_path=_path_of(error), traceback=_traceback(error))
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            verdict = self._failed(order, attempt, result, stated, reason, stored=stored)
        else:
            _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
            verdict = Verdict(What.DONE)
            self._end(result, attempt, stored=stored)
        logger.info(
            "task %s %s of queue %s: %s in %.3f s, attempt %d%s",
            *(visible(order.id), visible(order.path), visible(order.queue_name), STATES[verdict.what]),
            *(SYSTEM_CLOCK.monotonic() - begun, attempt.number),
            f": {visible(verdict.reason)}" if verdict.reason else "",
        )
        return verdict

    def _started(self, order: Order, attempt: Attempt) -> Any:
        """Return the result of a task that begins.

        :raises TaskPathError: the task cannot be imported.
        """
        result = TaskResult(
            task=order.task(self._backend),
            id=order.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=order.enqueued_at,
            started_at=attempt.started_at,
            last_attempted_at=attempt.last_attempted_at,
            finished_at=None,
            args=order.args,
            kwargs=order.kwargs,
            backend=self._backend,
            errors=list(attempt.errors),
            worker_ids=attempt.worker_ids,
        )
        task_started.send_robust(self._sender, task_result=result)
        return result

    def _failed(self, order: Order, attempt: Attempt, result: Any, error: Any, reason: str, *, stored: bool) -> Verdict:
        if result is None:  # the task cannot be imported
            if stored:
                results.fail(order.id, attempt, error, self._options.database)
            return Verdict(What.DEAD, reason=reason)
        result.errors.append(error)
        pause = self._options.retry_delay_s
        if pause is not None and attempt.number < self._options.max_attempts:
            _set(result, status=TaskResultStatus.READY)
            if stored:
                self._save(result, attempt.number)
            return Verdict(What.LATER, min(pause * 2.0 ** (attempt.number - 1), MAX_RETRY_DELAY_S), reason)
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._end(result, attempt, stored=stored)
        return Verdict(What.DEAD, reason=reason)

    def _end(self, result: Any, attempt: Attempt, *, stored: bool) -> None:
        """Store a result and tell Django; for a failure inside the ``except`` block, where logs have the traceback."""
        if stored:
            self._save(result, attempt.number)
        task_finished.send_robust(self._sender, task_result=result)

    def _save(self, result: Any, number: int) -> None:
        database = connections[self._options.database]
        if not database.in_atomic_block and database.connection is not None and not database.get_autocommit():
            database.close()  # the task has left it so, and nothing would be stored
        for pause in (*SAVE_PAUSES_S, None):
            try:
                if not results.save(result, number, self._options.database):
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
