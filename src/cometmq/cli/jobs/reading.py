"""The options of every job that looks into messages: where they are, which, and the forms of its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.moments import Moment

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.job_source import MessageSource

F = TypeVar("F", bound=Callable[..., Any])


class Report(Protocol):
    """What a job hands back."""

    def render(self) -> str:
        """For a terminal."""

    def to_dict(self) -> dict[str, Any]:
        """For a program."""


def reading_options(command: F) -> F:
    """``--namesrv``, ``--archive``, ``--since``, ``--until``, ``--master``, ``--report`` and ``-o``."""
    options = (
        namesrv_option,
        click.option(
            "--archive",
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            help="Read this archive, instead of asking brokers.",
        ),
        click.option("--since", type=Moment(), help="Only what was stored at or after this time."),
        click.option("--until", type=Moment(), help="Only what was stored before this time."),
        click.option("--master", default="local[*]", show_default=True, help="Spark master."),
        click.option(
            "--report",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write the report as HTML too.",
        ),
        click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def source_of(namesrv: str, archive: Path | None, since: int | None, until: int | None) -> MessageSource:
    """Where to read; an archive wins, since nameservers have a default."""
    from cometmq.spark.job_source import MessageSource

    return MessageSource(namesrv if archive is None else None, archive, since, until)


def tell_step(step: str) -> None:
    """Say on stderr what a job begins to do."""
    click.echo(f"{step} …", err=True)


def hand_out(done: Report, output: str, page: Path | None, title: str, plots: Sequence[Plot]) -> None:
    """Write the report to stdout, and as a page where that is asked for."""
    if page is not None:
        from cometmq.cli.job_report import write_page

        write_page(page, title, True, done.render(), plots)
        tell_step(f"the report is in {page}")
    click.echo(json.dumps(done.to_dict(), indent=2) if output == "json" else done.render())
