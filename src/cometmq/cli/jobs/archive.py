"""``cometmq pipeline archive``: topics, or a store's files, into Parquet, Delta Lake or Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.access import access_option, settings_of
from cometmq.cli.jobs.archive_upkeep import COMMANDS
from cometmq.cli.jobs.reading import Ending, end, report_options
from cometmq.cli.jobs.stopping import stopped_by_sigterm
from cometmq.cli.jobs.table import table_options
from cometmq.quantity import quantity
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.archive_report import ArchivedBatch, ArchiveReport
    from cometmq.spark.archive_table import TableFormat

_OWN_NAMES: Final = {
    "maxTriggerDelay": "--commit-interval",
    "maxBytesPerTrigger": "--commit-bytes",
    "startingOffsets": "--starting-offsets",
    "subscribePattern": "--pattern",
    "topic": "--topic",
}
"""Options of this command by the options of the source that they become."""


@click.group("archive", invoke_without_command=True, subcommand_metavar="[compact|expire|vacuum ARCHIVE]")
@namesrv_option
@click.option("--topic", "topics", multiple=True, help="A topic; may be given several times.")
@click.option("--pattern", help="A regular expression that whole topic names match, instead of --topic.")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Directory of the archive.")
@table_options
@click.option("--checkpoint", type=click.Path(path_type=Path, file_okay=False), help="Directory of the checkpoint.")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Read a broker's store from this directory, instead of asking brokers; needs no checkpoint.",
)
@click.option("--broker-name", default="", help="With --store: the name of the broker whose store it is.")
@click.option(
    "--trigger", default="availableNow", show_default=True, help="availableNow, or an interval such as 30s, 5m, 1h."
)
@click.option("--starting-offsets", default="earliest", show_default=True, help="earliest, latest or JSON.")
@click.option(
    "--commit-interval",
    help="Go on until Ctrl-C or SIGTERM, and commit when messages have waited so long (30s, 5m), or a commit is full.",
)
@click.option(
    "--commit-rows",
    "--max-offsets",
    "commit_rows",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Most messages in one commit.",
)
@click.option("--commit-bytes", default="2g", show_default=True, help="Most bytes in one commit, about: 64m, 2g.")
@click.option("--option", "settings", multiple=True, metavar="NAME=VALUE", help="Any other option of the source.")
@access_option()
@click.option("--dry-run", is_flag=True, help="Archive nothing; say how many messages would be archived.")
@click.option("--vacuum", is_flag=True, help="Then remove what archive vacuum would.")
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    namesrv: str,
    topics: tuple[str, ...],
    pattern: str | None,
    to: Path | None,
    table_format: TableFormat | None,
    checkpoint: Path | None,
    store: Path | None,
    broker_name: str,
    trigger: str,
    starting_offsets: str,
    commit_interval: str | None,
    commit_rows: int,
    commit_bytes: str,
    settings: tuple[str, ...],
    access: dict[str, str],
    master: str,
    dry_run: bool,
    page: Path | None,
    vacuum: bool,
    output: str,
) -> int:
    """Archive topics into Parquet, Delta Lake or Iceberg, exactly once, and go on where the last run stopped.

    compact, expire and vacuum keep an archive in order; see their --help.

    Exit codes: 0 done; 1 failed, what was committed stays; 2 wrong use; 3 partly done: stopped early, messages were
    gone before they were read (with --option failOnDataLoss=false), or bodies could not be unpacked.
    """
    if ctx.invoked_subcommand is not None:
        return DONE
    from cometmq.spark.archive import archive
    from cometmq.spark.archive_retention import vacuum as swept
    from cometmq.spark.archive_store import archive_store
    from cometmq.spark.gateway import ignore_what_ends

    if to is None:
        raise click.UsageError("say where the archive is with --to", ctx)
    options = settings_of("--option", settings) | ({} if pattern is None else {"subscribePattern": pattern})
    if store is None and not topics and not options.keys() & {"topic", "subscribe", "subscribePattern"}:
        raise click.UsageError("say what to archive: topics with --topic, or all that match with --pattern", ctx)
    if store is not None and access:
        raise click.UsageError("--access is for brokers, and a store is read without them", ctx)
    if store is None and checkpoint is None and not dry_run:
        raise click.UsageError("say where the checkpoint is with --checkpoint", ctx)
    try:
        with stopped_by_sigterm(ignore_what_ends) as stop:
            if store is not None:
                done = archive_store(
                    store,
                    to,
                    broker_name=broker_name,
                    topics=topics,
                    table_format=table_format,
                    options=options,
                    dry_run=dry_run,
                    master=master,
                    on_batch=_tell,
                    stop=stop,
                )
            else:
                done = archive(
                    namesrv,
                    topics,
                    to,
                    checkpoint or "",
                    table_format=table_format,
                    trigger=trigger,
                    starting_offsets=starting_offsets,
                    max_offsets_per_trigger=commit_rows,
                    commit_interval=commit_interval,
                    commit_bytes=commit_bytes,
                    options=options,
                    access=access,
                    dry_run=dry_run,
                    master=master,
                    on_batch=_tell,
                    stop=stop,
                )
    except OptionError as error:
        raise click.UsageError(_in_words_of_the_command(str(error), options), ctx) from error
    removed = swept(to).files_before if vacuum and done.queues and not dry_run else 0
    code = DONE if done.complete else PARTLY_DONE
    end(Ending(page, output), done, f"Archive {done.directory}", _plots, code, vacuumed=removed)
    if vacuum and output == "table":
        click.echo(f"removed {quantity(removed, 'file')} that no commit names")
    return code


def _in_words_of_the_command(told: str, options: Mapping[str, str]) -> str:
    """What the source calls by the names of its options is called by what the user wrote."""
    for name, own in _OWN_NAMES.items():
        if name not in options:
            told = told.replace(f"option {name} ", f"{own} ")
    return told


def _plots(done: ArchiveReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars

    names = [f"{of.topic} {of.broker} {of.queue_id}" for of in done.queues]
    return [Bars("By queue", "messages", names, {"messages": [of.rows for of in done.queues]})]


def _tell(batch: ArchivedBatch) -> None:
    speed = batch.total_rows / batch.seconds if batch.seconds else 0.0
    click.echo(
        f"batch {batch.batch_id}: {quantity(batch.rows, 'message')} in {quantity(batch.files, 'file')} committed; "
        f"{batch.total_rows:,} so far, {speed:,.0f} messages/s",
        err=True,
    )


for _upkeep in COMMANDS:
    command.add_command(_upkeep)
