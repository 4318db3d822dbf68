"""``cometmq metrics`` writes what Grafana and Prometheus import, and replaces nothing unasked."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from tests.cli.conftest import CommandLine

from cometmq.metrics.alerts import ALERTS


def test_the_files_are_written_once(offline: CommandLine, tmp_path: Path) -> None:
    written = offline("metrics", "export", str(tmp_path / "new"))
    assert written.code == 0
    dashboard, alerts = (Path(line) for line in written.out.splitlines())
    assert json.loads(dashboard.read_text())["title"] == "CometMQ"
    rules = yaml.safe_load(alerts.read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    alerts.write_text("mine")
    again = offline("metrics", "export", str(tmp_path / "new"))
    assert again.code == 2
    assert "--replace" in again.err
    assert alerts.read_text() == "mine"
    assert offline("metrics", "export", str(tmp_path / "new"), "--replace").code == 0
    assert alerts.read_text() != "mine"
