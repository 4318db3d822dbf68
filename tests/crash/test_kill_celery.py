"""SIGKILL to workers of Celery and to processes of their pools: no acknowledged task is lost.

``python -m benchmarks.celery.kills`` does the same a hundred times, kills the broker, too, and Redis and RabbitMQ.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.celery.brokers import started
from tests.interop.celery.kills import Plan, Scene
from tests.interop.conftest import unavailable

pytestmark = pytest.mark.crash

SYSTEMS = os.environ.get("COMETMQ_CELERY_BROKERS", "cometmq").split(",")
UNSEEN_S = 3.0


@pytest.mark.parametrize("key", SYSTEMS)
def test_no_task_is_lost_when_workers_are_killed(key: str, tmp_path: Path) -> None:
    plan = Plan(kills=4, victims=("child", "worker"), pause_s=(0.5, 1.0), unseen_s=UNSEEN_S)
    try:
        with started(key, tmp_path / "broker") as broker:
            scene = Scene(broker, tmp_path, plan)
            result = scene.run()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    assert result.sent > 50
    assert not result.lost, f"{result.lost} of {result.sent} are lost\n{scene.logs()}"
    assert len(result.twice) <= 10 * plan.kills, "more came twice than the killed processes can have had"
    again = [seconds for times in result.again_s.values() for seconds in times]
    assert all(seconds < 5 * UNSEEN_S for seconds in again), result.again_s
