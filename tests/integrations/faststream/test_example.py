"""The example."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.helpers.examples import run

from cometmq.testing import SyncCluster

PACKAGE = Path(__file__).parents[3] / "integrations" / "faststream" / "src"


def test_the_example_runs_as_written(
    cometmq_sync_cluster: SyncCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    shown = run("faststream_orders.py", tmp_path, cometmq_sync_cluster.namesrv_address)
    for line in ("an apple costs 5", "the order failed, again in a second", "an invoice of 7", "a second later: pay"):
        assert line in shown
