"""``cometmq pipeline audit``: whether what was produced, stored, consumed and archived agrees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.access import access_option
from cometmq.cli.jobs.reading import Ending, end, report_options, tell_step, wrong_use
from cometmq.message.names import TRACE_TOPIC

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.audit_report import AuditReport


_directory = click.Path(path_type=Path, file_okay=False)


@click.command("audit")
@namesrv_option
@access_option()
@click.option("--topic", required=True, help="The topic.")
@click.option("--archive", type=_directory, help="Directory of its archive.")
@click.option("--group", "groups", multiple=True, help="A consumer group of the topic; may be given several times.")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Where producers tell what they sent.")
@click.option("--allow-duplicates", is_flag=True, help="Note unique keys that are stored twice, and no more.")
@click.option("--detail", type=_directory, help="A new directory for the counts per queue and minute, as Parquet.")
@report_options
def command(
    namesrv: str,
    access: dict[str, str],
    topic: str,
    archive: Path | None,
    groups: tuple[str, ...],
    trace_topic: str,
    allow_duplicates: bool,
    detail: Path | None,
    master: str,
    page: Path | None,
    output: str,
) -> int:
    """Compare what was produced, stored, consumed and archived of a topic, per queue and minute.

    Exit codes: 0 everything agrees; 1 failed; 2 wrong use; 3 something differs, and the report names the first of
    each kind.
    """
    from cometmq.spark.audit import audit

    with wrong_use():
        found = audit(
            namesrv,
            topic,
            archive=archive,
            groups=groups,
            trace_topic=trace_topic,
            allow_duplicates=allow_duplicates,
            detail=detail,
            access=access,
            master=master,
            on_step=tell_step,
        )
    return end(Ending(page, output), found, _title(found), _plots, DONE if found.agrees else PARTLY_DONE)


def write_audit_page(found: AuditReport, path: Path) -> None:
    """Write the report of an audit as HTML."""
    from cometmq.cli.job_report import write_page

    write_page(path, _title(found), found.agrees, found.render(), _plots(found))


def _title(found: AuditReport) -> str:
    return f"Audit of {found.topic}"


def _plots(found: AuditReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars, Line
    from cometmq.spark.audit_report import moment

    names = [f"{of.broker} {of.queue_id}" for of in found.queues]
    counts = {"stored": [of.stored or 0 for of in found.queues]}
    curves = {"stored": [span.stored for span in found.spans]}
    if found.groups:
        curves["consumed"] = [span.consumed for span in found.spans]
    if found.archive is not None:
        counts["archived"] = [of.archived or 0 for of in found.queues]
        curves["archived"] = [span.archived for span in found.spans]
    plots: list[Plot] = [Bars("By queue", "messages", names, counts)]
    if len(found.spans) > 1:
        first = found.spans[0].at_ms
        minutes = [(span.at_ms - first) / 60_000 for span in found.spans]
        plots.append(
            Line("By the time they were stored", "messages", f"minutes since {moment(first)}", minutes, curves)
        )
    return plots
