"""The example."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.examples import run

from cometmq.testing import SyncCluster


def test_the_example_runs_as_written(cometmq_sync_cluster: SyncCluster, tmp_path: Path) -> None:
    shown = run("celery_tasks.py", tmp_path, cometmq_sync_cluster.namesrv_address)
    for line in ("1 + 2 = 3", "held by the broker until its time: yes", "the reminder for next year is revoked"):
        assert line in shown
