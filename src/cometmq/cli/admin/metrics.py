"""``cometmq metrics``: write files for monitoring with Prometheus and Grafana."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.errors import SERVER, require


@click.group("metrics")
def command() -> None:
    """Write a Grafana dashboard and Prometheus alert rules."""


@command.command("export")
@click.argument("directory", type=LocalPath(path_type=Path, file_okay=False))
@click.option("--replace", is_flag=True, help="Replace existing files.")
def export(directory: Path, replace: bool) -> None:
    """Write a Grafana dashboard and Prometheus alert rules to DIRECTORY.

    Import cometmq-dashboard.json into Grafana. In prometheus.yml, list cometmq-alerts.yml under rule_files, and add the
    servers to a job named cometmq.
    """
    require("cometmq metrics", SERVER, "yaml")
    import yaml

    from cometmq.metrics.alerts import rules
    from cometmq.metrics.dashboards import dashboard

    files = {
        "cometmq-dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        "cometmq-alerts.yml": yaml.safe_dump(rules(), sort_keys=False, width=1_000),
    }
    there = [name for name in files if (directory / name).exists()]
    if there and not replace:
        raise WrongUseError(f"{directory} already contains {' and '.join(there)}; add --replace to replace them")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        click.echo(str(directory / name))
