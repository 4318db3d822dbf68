"""The project in one file."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.examples import run

from cometmq.testing import SyncCluster


def test_the_example_runs_as_written(cometmq_sync_cluster: SyncCluster, tmp_path: Path) -> None:
    shown = run("tasks_of_django.py", tmp_path, cometmq_sync_cluster.namesrv_address)
    assert "sent when the transaction commits:" in shown
    assert re.findall(r"^(\w+: [A-Z]+, .*)$", shown, re.MULTILINE) == [
        "greet: SUCCESSFUL, Hello, comet!",
        "greet: SUCCESSFUL, Hello, moon!",
        "divide: FAILED, builtins.ZeroDivisionError",
    ]
