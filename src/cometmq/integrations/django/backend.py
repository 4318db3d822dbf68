"""The backend for Django's tasks: ``TASKS = {"default": {"BACKEND": "cometmq.integrations.django.CometMQBackend"}}``.

``enqueue`` writes the task's row, and sends its message when the current transaction commits. If it cannot be sent
then, the row remains READY and a worker sends it later. Without a table of results there is nothing to send later:
the error is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import Error as DatabaseError
from django.utils import timezone
from django.utils.crypto import get_random_string

from cometmq.errors import CometMQError
from cometmq.integrations.django.api import BaseTaskBackend, TaskResult, TaskResultStatus, task_enqueued
from cometmq.integrations.django.connections import CONNECTIONS, logger
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.orders import Order

APP: Final = "cometmq.integrations.django"
_ID_CHARS: Final = 32


class TaskNotSentError(CometMQError):
    """A task's message was not sent, and the task has no row from which a worker could send it."""


class CometMQBackend(BaseTaskBackend):
    """Tasks in topics of CometMQ or Apache RocketMQ; ``docs/django.md`` documents the options."""

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    @property
    def supports_get_result(self) -> bool:
        """True if results are stored in the database."""
        return self.settings.results

    @cached_property
    def settings(self) -> BackendOptions:
        """The backend's options.

        :raises OptionError: an option is not allowed.
        """
        return BackendOptions.read(self.options)

    @property
    def _rows(self) -> ModuleType:
        """The module of rows; Django creates backends before it can load models."""
        from cometmq.integrations.django import results

        return results

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task; it is sent when the current transaction commits.

        :raises InvalidTask: the task does not fit the backend (``InvalidTaskError`` of ``django-tasks``).
        :raises TypeError: an argument cannot be JSON.
        :raises IllegalMessageError: the arguments are too large.
        :raises QueueNameError: the queue's name cannot be part of a topic's name.
        :raises TaskNotSentError: no broker accepted the task, and there is no table of results.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(_ID_CHARS),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        order = Order(
            id=result.id,
            path=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            queue_name=task.queue_name,
            priority=task.priority,
            run_after=task.run_after,
            enqueued_at=result.enqueued_at,
            stored=self.settings.results,
        )
        order.message(self.settings)  # before anything is written: it may be too large
        if self.settings.results:
            self._rows.add(order, self.alias, self.settings.database)
        self._on_commit(partial(self._send_new, result, order))
        return result

    def _on_commit(self, send: Any) -> None:
        connection = connections[self.settings.database]
        if connection.settings_dict["ENGINE"] == "django.db.backends.dummy":
            send()  # a project without databases
        else:
            connection.on_commit(send)

    def _send_new(self, result: Any, order: Order) -> None:
        try:
            reason = self.send(order)
        except DatabaseError as error:  # the transaction is committed: an error would say that it is not
            reason = None
            logger.error(
                "task %s %s is stored; a worker sends it later, perhaps again: %s", order.id, order.path, error
            )
        if reason is not None:
            if not order.stored:
                raise TaskNotSentError(
                    f"the task {order.path} was not sent, although the current transaction, if any, is committed: "
                    f"{reason.message}",
                    next_step=reason.next_step,
                ) from reason
            logger.error("task %s %s is stored but not sent; a worker sends it later: %s", order.id, order.path, reason)
        task_enqueued.send(type(self), task_result=result)

    def send(self, order: Order) -> CometMQError | None:
        """Send a task's message, and write to its row that this was done, or why not; return the reason.

        :raises django.db.Error: the row cannot be changed.
        """
        failure: CometMQError | None = None
        try:
            CONNECTIONS.of(self.settings).send(order.message(self.settings))
        except CometMQError as error:
            failure = error
        if order.stored and failure is None:
            self._rows.sent(order.id, self.settings.database)
        elif order.stored:
            self._rows.not_sent(order.id, str(failure), self.settings.database)
        return failure

    def get_result(self, result_id: str) -> Any:
        """Return a task's result.

        :raises NotImplementedError: the backend has no table of results.
        :raises TaskResultDoesNotExist: there is no such task.
        :raises TaskPathError: the task's function cannot be imported.
        """
        if not self.settings.results:
            return super().get_result(result_id)
        return self._rows.get(result_id, self.alias, self.settings.database)

    def check(self, **options: Any) -> Iterator[checks.CheckMessage]:
        """Yield what is wrong with the settings, each with a next step."""
        yield from super().check(**options)
        place = f"TASKS[{self.alias!r}]"
        try:
            used = self.settings
        except CometMQError as error:
            yield checks.Error(f"{place}: {error.message}", hint=error.next_step, id="cometmq.E001")
            return
        if used.results and not apps.is_installed(APP):
            yield checks.Error(
                f"{place}: the table of results belongs to an application that is not installed",
                hint=f'Add "{APP}" to INSTALLED_APPS, then run manage.py migrate, or set the option results to False.',
                id="cometmq.E002",
            )
        for queue in sorted(self.queues):
            try:
                used.topic(queue)
            except CometMQError as error:
                yield checks.Error(f"{place}: {error.message}", hint=error.next_step, id="cometmq.E003")
        if used.database not in connections:
            yield checks.Error(
                f"{place}: there is no database {used.database!r}",
                hint=f"Set the option database to a name in DATABASES, for example {DEFAULT_DB_ALIAS!r}.",
                id="cometmq.E004",
            )
