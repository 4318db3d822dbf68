"""``cometmq pipeline archive compact|expire|vacuum``: keep an archive in order."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.reading import Ending, end, page_options, report_options, tell_step, wrong_use
from cometmq.cli.jobs.stopping import stopped_by_sigterm
from cometmq.cli.moments import Duration
from cometmq.quantity import quantity

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.archive_upkeep import Upkeep, UpkeepReport

_archive = click.argument("archive", type=click.Path(path_type=Path, file_okay=False, exists=True))
_dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
_topics = click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")


@click.command("compact")
@_archive
@_topics
@click.option("--target-mb", type=click.IntRange(1), default=128, show_default=True, help="Join files up to this size.")
@click.option(
    "--settled",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Only hours that ended so long ago: 30m, 1d.",
)
@_dry_run
@report_options
def compact_command(
    archive: Path,
    dry_run: bool,
    page: Path | None,
    output: str,
    topics: tuple[str, ...],
    target_mb: int,
    settled: timedelta,
    master: str,
) -> int:
    """Join small files, beside readers and a job that archives.

    Exit codes: 0 done; 1 failed, what was committed stays; 2 wrong use; 3 partly done: stopped before its end.
    """
    from cometmq.spark.archive_compaction import compact

    with stopped_by_sigterm() as stop, wrong_use():
        done = compact(
            archive,
            target_bytes=target_mb * 1024 * 1024,
            settled_ms=_ms(settled),
            topics=topics,
            dry_run=dry_run,
            master=master,
            on_step=_tell,
            stop=stop,
        )
    return _hand_out(done, output, page)


@click.command("expire")
@_archive
@_topics
@click.option("--keep", type=Duration(), required=True, help="Keep what was stored within this time: 12h, 90d.")
@_dry_run
@page_options
def expire_command(
    archive: Path,
    dry_run: bool,
    page: Path | None,
    output: str,
    topics: tuple[str, ...],
    keep: timedelta,
) -> int:
    """Take hours older than --keep out of an archive.

    vacuum then deletes their files. Exit codes: 0 done; 1 failed; 2 wrong use.
    """
    from cometmq.spark.archive_retention import expire

    with wrong_use():
        done = expire(archive, keep_ms=_ms(keep), topics=topics, dry_run=dry_run)
    return _hand_out(done, output, page)


@click.command("vacuum")
@_archive
@click.option(
    "--keep",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Keep files that were compacted or expired within this time, for readers of an older version.",
)
@_dry_run
@page_options
def vacuum_command(archive: Path, dry_run: bool, page: Path | None, output: str, keep: timedelta) -> int:
    """Delete files below an archive that its table does not name.

    Exit codes: 0 done; 1 failed; 2 wrong use.
    """
    from cometmq.spark.archive_retention import vacuum

    with wrong_use():
        done = vacuum(archive, keep_ms=_ms(keep), dry_run=dry_run)
    return _hand_out(done, output, page)


COMMANDS = (compact_command, expire_command, vacuum_command)


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def _tell(work: Upkeep) -> None:
    tell_step(f"{quantity(work.files, 'file')} joined in {quantity(work.commits, 'commit')}")


def _hand_out(done: UpkeepReport, output: str, page: Path | None) -> int:
    code = DONE if done.finished else PARTLY_DONE
    return end(Ending(page, output), done, f"{done.what} of {done.directory}", _plots, code)


def _plots(done: UpkeepReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars

    names = [f"{of.topic} {of.hour}" for of in done.hours]
    files = {"before": [of.files_before for of in done.hours], "after": [of.files_after for of in done.hours]}
    sizes = {"MB": [of.bytes_before / 1e6 for of in done.hours]}
    return [Bars("Files by hour", "files", names, files), Bars("Bytes by hour", "MB", names, sizes)]
