"""CometMQ's backend in the places of the backends whose test cases run."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

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


def take_places(handler: Any, package: str, *modules: ModuleType) -> None:
    """Let ours stand for the backends of a package in the settings of its tests, and in the modules of its cases."""
    ours = {
        f"{package}.backends.dummy.DummyBackend": WaitingBackend,
        f"{package}.backends.immediate.ImmediateBackend": AtOnceBackend,
    }
    create = handler.create_connection

    def create_connection(self: Any, alias: str) -> Any:
        given = self.settings[alias]
        if given["BACKEND"] not in ours:
            return create(self, alias)
        return ours[given["BACKEND"]](alias=alias, params=given)

    handler.create_connection = create_connection
    for module in modules:  # cases compare the classes of backends
        for path, backend in ours.items():
            setattr(module, path.rpartition(".")[2], backend)


def with_database(case: type[unittest.TestCase], not_ours: Mapping[str, str]) -> type[unittest.TestCase]:
    """Return a test case that may use the database, without the tests that are not about our backend."""
    skipped = {
        name: unittest.skip(not_ours[key])(getattr(case, name))
        for name in dir(case)
        if (key := f"{case.__name__}.{name}") in not_ours
    }
    return type(case.__name__, (case,), {"databases": {"default"}, **skipped})
