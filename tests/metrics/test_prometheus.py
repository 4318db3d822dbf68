"""Real Prometheus scrapes a real broker, and is asked every query of the dashboard and every rule. Skipped without.

Debian's package ``prometheus`` has both programs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.helpers.waiting import wait_for

from cometmq.client import Message
from cometmq.metrics.alerts import rules
from cometmq.metrics.dashboards import ROWS
from cometmq.testing import SyncCluster, free_port

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="Prometheus is not installed"
)
VARIABLES = {"$__rate_interval": "10s", "$cluster": ".*", "$broker": ".*"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("prometheus")
    port, metrics = free_port(), free_port()
    (directory / "rules.yml").write_text(yaml.safe_dump(rules()))
    scraped = {"job_name": "cometmq", "static_configs": [{"targets": [f"127.0.0.1:{metrics}"]}]}
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scraped],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    keys = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(metrics)}
    with SyncCluster(broker_keys=keys) as cluster, open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            ["prometheus", "--config.file", "prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"],
            cwd=directory,
            stdout=log,
            stderr=log,
        )
        try:
            cluster.send(Message("Orders", b"first"))
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: asked(url, 'count(rocketmq_messages_in_total{topic="Orders"})'), "Prometheus has scraped")
            cluster.send(Message("Orders", b"second"))
            wait_for(lambda: asked(url, "rate(rocketmq_messages_in_total[10s]) > 0"), "there are two scrapes")
            yield url
        finally:
            process.terminate()
            process.wait(30)


def api(url: str, path: str, **parameters: str) -> dict[str, Any]:
    """An answer of Prometheus; of a query that it refuses, too."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def asked(url: str, query: str) -> list[Any]:
    """The samples of a query; none while Prometheus starts."""
    try:
        return list(api(url, "query", query=query)["data"]["result"])
    except (OSError, json.JSONDecodeError):  # it answers 503 without JSON
        return []


def queries() -> Iterator[tuple[str, str]]:
    for _, row in ROWS:
        for panel in row:
            for expression, _ in panel.queries:
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                yield panel.title, expression


def test_prometheus_takes_the_rules_and_reads_every_metric(prometheus: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules()))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    wait_for(lambda: all(rule["health"] == "ok" for rule in loaded(prometheus)), "every rule was computed")
    assert len(loaded(prometheus)) == len(rules()["groups"][0]["rules"])
    [target] = api(prometheus, "targets")["data"]["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def loaded(url: str) -> list[dict[str, Any]]:
    return [rule for group in api(url, "rules")["data"]["groups"] for rule in group["rules"]]


def test_prometheus_answers_every_query_of_the_dashboard(prometheus: str) -> None:
    refused = {}
    for title, query in queries():
        answer = api(prometheus, "query", query=query, time=str(time.time()))
        if answer["status"] != "success":
            refused[title] = answer
    assert refused == {}
    assert asked(prometheus, dict(queries())["Messages in"]), "a query gives samples"
