"""Each alert about sets fires for what it is for, and for nothing else, as Prometheus itself computes it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cometmq.metrics.alerts import ALERTS, rules

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
MINUTES = 90


def series(**changed: dict[str, str]) -> dict[str, str]:
    """The samples of three members, each minute: a whole set whose master is ``a``, with some changed.

    :param changed: by member, the values of a metric in promtool's notation.
    """
    found = {}
    for member in ("a", "b", "c"):
        values = {
            "up": "1",
            "is_master": "1" if member == "a" else "0",
            'state{state="halted"}': "0",
            "members": "3",
            "in_sync_members": "3",
            "refuses_messages": "0",
            "confirmed_offset": "0+100",
            "unconfirmed_bytes": "10",
            "engine_reachable": "1",
            "elections_total": "1",
            "epoch": "4",
            "slaves": "2+0x30 0+0x60" if member == "b" else "0",  # b was the master before
            **changed.get(member, {}),
        }
        for name, value in values.items():
            metric, _, label = name.partition("{")
            full = {"up": "up", "slaves": "cometmq_slaves"}.get(metric, f"cometmq_failover_{metric}")
            labels = f'job="cometmq",cluster="c",node_id="orders",instance="{member}"'
            found[f"{full}{{{labels}{',' + label.rstrip('}') if label else ''}}}"] = value
    return found


def lasting(value: str) -> str:
    """A value for all minutes."""
    if " " in value or "x" in value:
        return value
    return f"{value}x{MINUTES}" if "+" in value else f"{value}+0x{MINUTES}"


CASES: dict[str, dict[str, dict[str, str]]] = {
    "CometMQNoMaster": {"a": {"is_master": "0"}},
    "CometMQMemberHalted": {"b": {'state{state="halted"}': "1"}},
    "CometMQMasterRefusesMessages": {"a": {"refuses_messages": "1"}},
    "CometMQMessagesNotConfirmed": {"a": {"confirmed_offset": "5000+0"}},
    "CometMQMemberNotInSync": {name: {"in_sync_members": "2"} for name in "abc"},
    "CometMQEngineUnreachable": {"c": {"engine_reachable": "0"}},
    "CometMQMasterChanged": {"b": {"elections_total": "1+0x84 2+0x5"}},
    "CometMQMasterChangesOften": {"b": {"elections_total": "1+0x30 1+0.2x60"}},
}
"""What makes each alert fire."""
TOO = {"CometMQMasterChangesOften": ["CometMQMasterChanged"]}
"""Alerts that fire together."""


def test_every_alert_about_sets_has_a_case() -> None:
    about = {alert.name for alert in ALERTS if "cometmq_failover_" in alert.expression} - {"CometMQNoSlave"}
    assert about == CASES.keys()


@pytest.mark.parametrize("name", ["", *CASES])
def test_an_alert_fires_only_when_it_should(tmp_path: Path, name: str) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules()))
    firing = {name, *TOO.get(name, [])} - {""}
    tests: list[dict[str, Any]] = []
    for alert in (*CASES, "CometMQNoSlave", "CometMQServerDown"):
        wanted: dict[str, Any] = {"eval_time": f"{MINUTES - 1}m", "alertname": alert}
        tests.append(wanted)
    given = series(**CASES.get(name, {}))
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": lasting(value)} for one, value in given.items()],
        "alert_rule_test": tests,
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    shown = done.stdout + done.stderr
    fired = {line.split("alertname:")[1].split(",")[0].strip() for line in shown.splitlines() if "alertname:" in line}
    assert fired == firing, shown
