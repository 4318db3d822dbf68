"""``cometmq pipeline dlq``: why messages die, and another try for those that are chosen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.failures import DONE, FAILED, PARTLY_DONE
from cometmq.cli.jobs.reading import Reading, end, reading_options, report_options, tell_step, wrong_use

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.dead_letters_report import DeadLetterReport


@click.command("dlq")
@reading_options
@click.option("--group", "groups", multiple=True, help="A consumer group; all with dead letters by default.")
@click.option("--key", help="Only dead letters with this key.")
@click.option("--tag", help="Only dead letters with this tag.")
@click.option("--origin-topic", help="Only dead letters that were sent to this topic.")
@click.option("--reason", metavar="PROPERTY", help="Count by this property too, in which the application tells why.")
@click.option("--top", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Topics, tags, keys named.")
@click.option("--resend", is_flag=True, help="Then send these dead letters again, each one once; needs --group.")
@click.option("--dry-run", is_flag=True, help="With --resend: only say how many would be sent.")
@click.option(
    "--ledgers",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    help="With --resend: directory of dlq-GROUP.ledger, which tells what was sent.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="With --resend: messages a second at most.")
@report_options
def command(
    reading: Reading,
    groups: tuple[str, ...],
    key: str | None,
    tag: str | None,
    origin_topic: str | None,
    reason: str | None,
    top: int,
    resend: bool,
    dry_run: bool,
    ledgers: Path,
    rate: float | None,
) -> int:
    """Count dead letters by group, topic of origin, tag, key and time, and send them again.

    Exit codes: 0 done; 1 failed, or no dead letter could be sent again; 2 wrong use; 3 some could not be sent again.
    """
    from cometmq.client.admin import END_OF_TIME_MS
    from cometmq.client.dead_letters import Selection
    from cometmq.spark.dead_letters import dead_letters, send_again

    source = reading.source
    if resend and (source.namesrv is None or not groups):
        raise click.UsageError(
            "--resend needs --group, and brokers that hold the dead letters, no --archive or --store"
        )
    if not resend and (dry_run or rate is not None):
        raise click.UsageError("--dry-run and --rate say how to --resend")
    wanted = Selection(
        key=key,
        tag=tag,
        origin_topic=origin_topic,
        begin_ms=reading.since or 0,
        end_ms=END_OF_TIME_MS if reading.until is None else reading.until - 1,
    )
    with wrong_use():
        done = dead_letters(
            source,
            groups,
            selection=wanted,
            reason=reason,
            top=top,
            master=reading.master,
            on_step=tell_step,
        )
    if resend:
        resent = send_again(
            reading.namesrv,
            groups,
            wanted,
            ledgers=ledgers,
            rate=rate,
            dry_run=dry_run,
            access=reading.access,
            on_step=tell_step,
        )
        done = dataclasses.replace(done, resent=resent, dry_run=dry_run)
    code = DONE
    if done.failed:
        code = PARTLY_DONE if any(of.sent or of.sent_before for of in done.resent) else FAILED
    return end(reading, done, f"Dead letters in {done.source}", _plots, code)


def _plots(done: DeadLetterReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars
    from cometmq.spark.delay_report import moment

    plots: list[Plot] = []
    if done.over_time:
        counts = dict(done.over_time)
        times = range(min(counts), max(counts) + 1, done.stretch_ms)
        heights = {"dead letters": [counts.get(at, 0) for at in times]}
        plots.append(Bars("Over time, from … (UTC) on", "dead letters", [moment(at)[:16] for at in times], heights))
    for title, found in (("topic of origin", done.topics), ("tag", done.tags), ("reason", done.reasons)):
        names = [of.value[:24] or "–" for of in found]
        plots.append(Bars(f"By {title}", "dead letters", names, {"dead letters": [of.letters for of in found]}))
    names = [of.group[:24] for of in done.groups[:20]]
    plots.append(Bars("By group", "dead letters", names, {"dead letters": [of.letters for of in done.groups[:20]]}))
    return plots
