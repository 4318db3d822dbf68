"""The test cases of the package ``django-tasks`` with CometMQ's backend; run by Django's own test runner.

PYTHONPATH=src:tests/interop/django:tests/interop/django/backport:SUITE python -m django test backport_cases
    --settings=backport_settings
"""

from __future__ import annotations

from typing import ClassVar

from applies import NOT_OURS_OF_BACKPORT
from django.test import SimpleTestCase, override_settings
from django_tasks import TaskBackendHandler
from ours import WithoutResultsBackend, take_places, with_database
from tests.tests import test_dummy_backend, test_immediate_backend, test_tasks

take_places(TaskBackendHandler, "django_tasks", test_immediate_backend, test_dummy_backend, test_tasks)
DummyBackendTestCase = with_database(test_dummy_backend.DummyBackendTestCase, NOT_OURS_OF_BACKPORT)
ImmediateBackendTestCase = with_database(test_immediate_backend.ImmediateBackendTestCase, NOT_OURS_OF_BACKPORT)
TaskTestCase = with_database(test_tasks.TaskTestCase, NOT_OURS_OF_BACKPORT)
WITHOUT_RESULTS = f"{WithoutResultsBackend.__module__}.{WithoutResultsBackend.__name__}"


@override_settings(TASKS={"default": {"BACKEND": WITHOUT_RESULTS, "QUEUES": []}})
class WithoutResultsTestCase(SimpleTestCase):
    """The cases of the immediate backend about results that cannot be read."""

    databases: ClassVar = {"default"}
    test_cannot_get_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result
    test_cannot_refresh_result = test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result
