"""Django's test cases with CometMQ's backend in the place of Django's; run by Django's own test runner.

PYTHONPATH=src:tests/interop/django:DJANGO/tests python -m django test cases --settings=project
"""

from __future__ import annotations

import unittest
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from django.tasks import TaskBackendHandler
from django.test import SimpleTestCase, override_settings
from tests.interop.django.applies import NOT_OURS

from cometmq.integrations.django import results
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.models import StoredTask
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.worker import Worker, WorkerSettings


class OwnTopics(CometMQBackend):
    """Has topics of its own, without an option: a case compares the options with those in the settings."""

    @cached_property
    def settings(self) -> BackendOptions:
        """The options."""
        return BackendOptions(prefix=f"{type(self).__name__}-{self.alias}")


class WaitingBackend(OwnTopics):
    """Its tasks wait; it lists them as the dummy backend does."""

    def clear(self) -> None:
        """Forget all tasks."""
        StoredTask.objects.all().delete()

    @property
    def results(self) -> list[Any]:
        """All tasks, the oldest first."""
        return [results.result_of(row) for row in StoredTask.objects.order_by("enqueued_at")]


class AtOnceBackend(OwnTopics):
    """A worker runs its tasks before ``enqueue`` returns, as those of the immediate backend."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, and let a worker run it."""
        result = super().enqueue(task, args, kwargs)
        Worker(self, WorkerSettings(queues=(task.queue_name,), max_tasks=1)).run()
        result.refresh()
        return result


class WithoutResultsBackend(CometMQBackend):
    """Stores no results, as the immediate backend."""

    @cached_property
    def settings(self) -> BackendOptions:
        """The options."""
        return BackendOptions(prefix="WithoutResults", results=False)


OURS = {
    "django.tasks.backends.dummy.DummyBackend": WaitingBackend,
    "django.tasks.backends.immediate.ImmediateBackend": AtOnceBackend,
}
"""The names of Django's backends in the settings of its tests, and those that stand for them."""
django_creates = TaskBackendHandler.create_connection


def create_connection(handler: TaskBackendHandler, alias: str) -> Any:
    """Create the backend of an alias, ours in the place of Django's."""
    given = handler.settings[alias]
    if given["BACKEND"] not in OURS:
        return django_creates(handler, alias)
    return OURS[given["BACKEND"]](alias=alias, params=given)


TaskBackendHandler.create_connection = create_connection


def with_database(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """Return a test case that may use the database, without the tests that are not about our backend."""
    skipped = {
        name: unittest.skip(NOT_OURS[key])(getattr(case, name))
        for name in dir(case)
        if (key := f"{case.__name__}.{name}") in NOT_OURS
    }
    return type(case.__name__, (case,), {"databases": {"default"}, **skipped})


test_immediate_backend = import_module("tasks.test_immediate_backend")
test_dummy_backend = import_module("tasks.test_dummy_backend")
test_tasks = import_module("tasks.test_tasks")
for module in (test_immediate_backend, test_dummy_backend, test_tasks):  # cases compare the classes of backends
    for path, ours in OURS.items():
        setattr(module, path.rpartition(".")[2], ours)
DummyBackendTestCase = with_database(test_dummy_backend.DummyBackendTestCase)
ImmediateBackendTestCase = with_database(test_immediate_backend.ImmediateBackendTestCase)
ImmediateBackendTransactionTestCase = with_database(test_immediate_backend.ImmediateBackendTransactionTestCase)
TaskTestCase = with_database(test_tasks.TaskTestCase)


@override_settings(TASKS={"default": {"BACKEND": f"{__name__}.WithoutResultsBackend", "QUEUES": []}})
class WithoutResultsTestCase(SimpleTestCase):  # type: ignore[misc]
    """The cases of the immediate backend about results that cannot be read."""

    databases: ClassVar = {"default"}
    test_cannot_get_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result
    test_cannot_refresh_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result
