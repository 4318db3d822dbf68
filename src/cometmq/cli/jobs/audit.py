"""``cometmq pipeline audit``: whether what was produced, stored, consumed and archived agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.access import access_option
from cometmq.cli.jobs.reading import report_options, tell_report, tell_step, wrong_use
from cometmq.message.names import TRACE_TOPIC

if TYPE_CHECKING:
    from cometmq.spark.audit_report import AuditReport


@click.command("audit")
@namesrv_option
@access_option()
@click.option("--topic", required=True, help="The topic.")
@click.option("--archive", type=click.Path(path_type=Path, file_okay=False), help="Directory of its archive.")
@click.option("--group", "groups", multiple=True, help="A consumer group of the topic; may be given several times.")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Where producers tell what they sent.")
@click.option("--allow-duplicates", is_flag=True, help="Note unique keys that are stored twice, and no more.")
@click.option(
    "--detail", type=click.Path(path_type=Path, file_okay=False), help="Counts per queue and minute, Parquet."
)
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
    if page is not None:
        write_audit_page(found, page)
        tell_report(page)
    code = DONE if found.agrees else PARTLY_DONE
    click.echo(json.dumps(found.to_dict() | {"exit_code": code}, indent=2) if output == "json" else found.render())
    return code


def write_audit_page(found: AuditReport, path: Path) -> None:
    """Write the report of an audit as HTML."""
    from cometmq.cli.job_report import Bars, Line, write_page

    names = [f"{of.broker} {of.queue_id}" for of in found.queues]
    counts = {"stored": [of.stored or 0 for of in found.queues]}
    curves = {"stored": [span.stored for span in found.spans]}
    if found.groups:
        curves["consumed"] = [span.consumed for span in found.spans]
    if found.archive is not None:
        counts["archived"] = [of.archived or 0 for of in found.queues]
        curves["archived"] = [span.archived for span in found.spans]
    plots: list[Bars | Line] = [Bars("By queue", "messages", names, counts)]
    if len(found.spans) > 1:
        first = found.spans[0].at_ms
        minutes = [(span.at_ms - first) / 60_000 for span in found.spans]
        plots.append(Line("By the time they were stored", "messages", "minutes since the first", minutes, curves))
    write_page(path, f"Audit of {found.topic}", found.agrees, found.render(), plots)
