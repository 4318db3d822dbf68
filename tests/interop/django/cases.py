"""Django's test cases with CometMQ's backend in the place of Django's; run by Django's own test runner.

PYTHONPATH=src:tests/interop/django:DJANGO/tests python -m django test cases --settings=project
"""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

from django.tasks import TaskBackendHandler
from django.test import SimpleTestCase, override_settings
from tests.interop.django.applies import NOT_OURS
from tests.interop.django.ours import WithoutResultsBackend, take_places, with_database

test_immediate_backend = import_module("tasks.test_immediate_backend")
test_dummy_backend = import_module("tasks.test_dummy_backend")
test_tasks = import_module("tasks.test_tasks")
take_places(TaskBackendHandler, "django.tasks", test_immediate_backend, test_dummy_backend, test_tasks)
DummyBackendTestCase = with_database(test_dummy_backend.DummyBackendTestCase, NOT_OURS)
ImmediateBackendTestCase = with_database(test_immediate_backend.ImmediateBackendTestCase, NOT_OURS)
ImmediateBackendTransactionTestCase = with_database(
    test_immediate_backend.ImmediateBackendTransactionTestCase, NOT_OURS
)
TaskTestCase = with_database(test_tasks.TaskTestCase, NOT_OURS)
WITHOUT_RESULTS = f"{WithoutResultsBackend.__module__}.{WithoutResultsBackend.__name__}"


@override_settings(TASKS={"default": {"BACKEND": WITHOUT_RESULTS, "QUEUES": []}})
class WithoutResultsTestCase(SimpleTestCase):  # type: ignore[misc]
    """The cases of the immediate backend about results that cannot be read."""

    databases: ClassVar = {"default"}
    test_cannot_get_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result
    test_cannot_refresh_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result
