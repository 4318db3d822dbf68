"""``cometmq pipeline replay``: an archive's messages back into a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.access import access_option
from cometmq.cli.jobs.reading import Ending, end, report_options, wrong_use
from cometmq.cli.jobs.stopping import stopped_by_sigterm
from cometmq.cli.moments import Moment
from cometmq.quantity import quantity

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.replay_report import ReplayedStep, ReplayReport

_directory = click.Path(path_type=Path, file_okay=False)


@click.command("replay")
@namesrv_option
@access_option()
@click.option("--archive", required=True, type=_directory, help="Directory of the archive.")
@click.option("--ledger", required=True, type=_directory, help="Directory that keeps how far the replay is.")
@click.option("--topic", help="Which topic of the archive; may be left out where it holds one.")
@click.option("--to", help="Topic to send to, which must exist; by default one of the same name.")
@click.option("--since", type=Moment(), help="Only messages stored at or after this time.")
@click.option("--until", type=Moment(), help="Only messages stored before this time.")
@click.option("--key", "keys", multiple=True, help="Only messages with this key or unique key; may be repeated.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; may be repeated.")
@click.option("--where", help="Only messages that meet this Spark SQL predicate on the archive's columns.")
@click.option("--by-key", is_flag=True, help="Choose queues anew by key, instead of keeping them.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Most messages a second.")
@click.option("--keep-born-time", is_flag=True, help="Give messages their born times again; slower.")
@click.option("--translate-groups", help="Groups, separated by commas, that go on in the new topic where they are.")
@click.option("--groups-namesrv", help="Nameservers of the brokers where those groups are, if not --namesrv.")
@access_option("--groups-access", "For --groups-namesrv, if not --access: credentials and TLS")
@click.option("--dry-run", is_flag=True, help="Send nothing and write nothing; tell what would be sent.")
@click.option("--step", type=click.IntRange(1), help="Offsets of one step; by default as many as suit the rate.")
@report_options
def command(
    namesrv: str,
    access: dict[str, str],
    archive: Path,
    ledger: Path,
    topic: str | None,
    to: str | None,
    since: int | None,
    until: int | None,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    where: str | None,
    by_key: bool,
    rate: float | None,
    keep_born_time: bool,
    translate_groups: str | None,
    groups_namesrv: str | None,
    groups_access: dict[str, str],
    dry_run: bool,
    step: int | None,
    master: str,
    page: Path | None,
    output: str,
) -> int:
    """Send messages of an archive to a topic, and go on where the last run stopped.

    Exit codes: 0 done; 1 failed, what was sent is known and is not sent again; 2 wrong use; 3 partly done: stopped
    early, or there are warnings.
    """
    from cometmq.spark.replay import replay
    from cometmq.spark.replay_ledger import Selection

    if groups_access and groups_namesrv is None:
        raise click.UsageError("--groups-access goes with --groups-namesrv")
    with stopped_by_sigterm() as stop, wrong_use():
        done = replay(
            archive,
            namesrv,
            ledger,
            topic=topic,
            to=to,
            selection=Selection(since, until, keys, tags, where),
            by_key=by_key,
            per_second=rate,
            keep_born_time=keep_born_time,
            translate_groups=[name.strip() for name in (translate_groups or "").split(",") if name.strip()],
            groups_namesrv=groups_namesrv,
            access=access,
            groups_access=groups_access or None,
            dry_run=dry_run,
            step_offsets=step,
            master=master,
            on_step=_tell,
            stop=stop,
        )
    return end(Ending(page, output), done, _title(done), _plots, DONE if done.complete else PARTLY_DONE)


def _tell(step: ReplayedStep) -> None:
    speed = step.total / step.seconds if step.seconds else 0.0
    again = f" ({step.found:,} of them were there)" if step.found else ""
    click.echo(
        f"step {step.step}: {quantity(step.messages, 'message')}{again}; {step.total:,} so far, "
        f"{speed:,.0f} messages/s",
        err=True,
    )


def write_replay_page(done: ReplayReport, path: Path) -> None:
    """Write the report of a replay as HTML."""
    from cometmq.cli.job_report import write_page

    write_page(path, _title(done), done.complete, done.render(), _plots(done))


def _title(done: ReplayReport) -> str:
    return f"Replay of {done.topic} to {done.to}"


def _plots(done: ReplayReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars, Line

    names = [f"{of.broker} {of.queue_id}" for of in done.queues]
    plots: list[Plot] = [Bars("By queue", "messages", names, {"messages": [of.messages for of in done.queues]})]
    if done.steps:
        seconds, totals = [0.0, *(of.seconds for of in done.steps)], [0, *(of.total for of in done.steps)]
        plots.append(Line("Progress", "messages sent", "seconds", seconds, {"messages": totals}))
    return plots
