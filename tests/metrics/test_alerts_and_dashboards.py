"""What the package ships for Grafana and Prometheus names metrics that exist, and each alert says what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.broker.metrics.families import FAMILIES
from cometmq.metrics.alerts import ALERTS, Alert
from cometmq.metrics.dashboards import ROWS, dashboard
from cometmq.metrics.family import Kind

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "alerts.md"
LABELS = {family.name: {*family.labels, "cluster", "node_id", "node_type", "instance"} for family in FAMILIES}
"""``instance`` is Prometheus's name of the process."""
REPORTED_BY_SLAVES = {
    family.name
    for family in FAMILIES
    if family.kind is Kind.GAUGE and {"topic", "consumer_group", "language"} & set(family.labels)
}
EXPRESSIONS = [
    *((alert.name, alert.expression) for alert in ALERTS),
    *((panel.title, query) for _, row in ROWS for panel in row for query, _ in panel.queries),
]
ONLY_MASTERS = "unless on (cluster, instance) cometmq_failover_is_master == 0"


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rocketmq|cometmq)_\w+", expression))


def known() -> set[str]:
    names = set()
    for family in FAMILIES:
        parts = ("_bucket", "_count", "_sum") if family.kind is Kind.HISTOGRAM else ("",)
        names |= {family.name + part for part in parts}
    return names


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_expression_names_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    assert metrics_of(expression) <= known(), title
    assert expression.count("(") == expression.count(")")
    expression = expression.replace(f" {ONLY_MASTERS}", "")
    wanted = set(re.findall(r"[{,](\w+)(?:=~|!=|=)", expression)) - {"job"}
    for by in re.findall(r"by \(([^)]*)\)", expression):
        wanted |= {label.strip() for label in by.split(",")} - {"le"}
    for name in metrics_of(expression):
        family = re.sub(r"_(?:bucket|count|sum)$", "", name)
        assert wanted <= LABELS.get(family, LABELS.get(name, set())), (title, name)


@pytest.mark.parametrize(
    "query", [query for _, row in ROWS for panel in row for query, _ in panel.queries if "sum by" in query]
)
def test_no_panel_counts_a_set_once_for_each_of_its_members(query: str) -> None:
    """A sum over all instances would show three times the lag of a group at a set of three."""
    if metrics_of(query) & REPORTED_BY_SLAVES:
        assert re.search(r"sum by \([^)]*\) \(max by \(cluster, node_id\b[^)]*\) \(sum by \(instance, ", query)
        assert ONLY_MASTERS in query


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_has_its_heading_with_what_to_do(alert: Alert) -> None:
    section = re.search(
        rf"^## {alert.name}$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    assert "`" in section[1], "a command or a key that helps"


def test_the_page_has_no_alert_that_is_gone() -> None:
    assert re.findall(r"^## (CometMQ\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == [
        one.name for one in ALERTS
    ]


def test_panels_do_not_overlap() -> None:
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))


def test_the_table_of_families_is_up_to_date() -> None:
    """After a change of the families: scripts/metrics_page."""
    script = PAGE.parent.parent / "scripts" / "metrics_page"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
