"""The options of ``cometmq console`` and ``cometmq serve`` about files that the console shows."""

from __future__ import annotations

from pathlib import Path

import click

reports_option = click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory with reports of Spark jobs (-o json), for the console's page Pipeline.",
)
audit_log_option = click.option(
    "--audit-log",
    "audit_logs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Audit log of a broker, or its store, for the console; may be given several times.",
)
