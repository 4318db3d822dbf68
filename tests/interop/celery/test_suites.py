"""Kombu's and Celery's own integration tests, unmodified, against CometMQ; a selection that takes a minute.

``python -m tests.interop.celery.suites celery`` runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.celery.brokers import Broker, Redis, started
from tests.interop.celery.suites import CANVAS, results_in_redis, run_celery, run_kombu
from tests.interop.conftest import unavailable

pytestmark = pytest.mark.interop

TASKS = "t/integration/test_tasks.py::test_tasks::"
SELECTED = (
    "t/integration/test_inspect.py::test_Inspect::test_active_queues",
    "t/integration/test_tasks.py::test_class_based_tasks",
    *(f"{TASKS}test_{name}" for name in ("basic_task", "eta", "reject_without_requeue_stores_failure")),
    f"{TASKS}test_reject_with_requeue_redelivers_and_succeeds",
    f"{TASKS}test_task_retried_priority",
    f"{CANVAS}test_chain::test_chain_of_chords_with_two_tasks",
    f"{CANVAS}test_chord::test_chord_order",
    f"{CANVAS}test_group::test_large_group",
    f"{CANVAS}test_stamping_mechanism::test_stamping_workflow",
    f"{CANVAS}test_xmap_xstarmap",
    "t/integration/test_security.py",
    "t/integration/test_serialization.py",
)


@pytest.fixture(scope="module", params=["cometmq"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        builds.celery_suites()
        with started(request.param, tmp_path_factory.mktemp(request.param)) as running:
            yield running
    except builds.ToolMissingError as problem:
        unavailable(problem)


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Redis]:
    try:
        with results_in_redis(tmp_path) as running:
            yield running
    except builds.ToolMissingError as problem:
        unavailable(problem)


def test_kombu_s_tests_of_a_transport_pass(broker: Broker) -> None:
    outcome = run_kombu(broker)
    assert not outcome.failed, outcome.text
    assert outcome.passed == 45


def test_celery_s_tests_pass(broker: Broker, results: Redis) -> None:
    outcome = run_celery(broker, results, *SELECTED)
    assert not outcome.failed, outcome.text
    assert outcome.passed == len(SELECTED)
