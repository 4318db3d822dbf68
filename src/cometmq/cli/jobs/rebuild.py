"""``cometmq pipeline rebuild``: consume queues and index from the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.failures import DONE, FAILED
from cometmq.cli.jobs.reading import Ending, end, report_options, tell_step, wrong_use
from cometmq.options import load_options
from cometmq.store.config import StoreConfig

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.rebuild_report import RebuildReport

_MOST_BARS: Final = 60


@click.command("rebuild")
@click.option(
    "--store",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory of the store; no broker may run on it.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The broker's broker.conf: sizes of files and delay levels.",
)
@click.option("--dry-run", is_flag=True, help="Only compare the consume queues with the log.")
@click.option("--bad-records", help="Directory for damaged records; without it the first one ends the job.")
@report_options
def command(
    store: Path,
    config: Path | None,
    dry_run: bool,
    bad_records: str | None,
    master: str,
    page: Path | None,
    output: str,
) -> int:
    """Make the consume queues and the index of a store anew from its log, byte for byte as a broker writes them.

    The old ones go to comet/quarantine in the store. Exit codes: 0 done, or all agrees; 1 failed, or (--dry-run)
    queues differ from the log; 2 wrong use.
    """
    from cometmq.spark.rebuild import rebuild

    # Where the store lies is said here; a broker.conf may come from another machine.
    overrides = {"store_path_root_dir": str(store), "store_path_commit_log": ""}
    text = "" if config is None else config.read_text(encoding="utf-8")
    options, _ = load_options(StoreConfig, text, source=str(config), overrides=overrides)
    with wrong_use():
        done = rebuild(
            store, dry_run=dry_run, config=options, bad_records_path=bad_records, master=master, on_step=tell_step
        )
    title = f"{'Comparison' if dry_run else 'Rebuild'} of {done.store}"
    return end(Ending(page, output), done, title, _plots, FAILED if done.differ else DONE)


def _plots(done: RebuildReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars

    shown = sorted(done.queues, key=lambda of: (-of.differ, of.topic, of.queue_id))[:_MOST_BARS]
    names = [f"{of.topic[:24]} {of.queue_id}" for of in shown]
    plots: list[Plot] = [Bars("By queue", "messages", names, {"messages": [of.units for of in shown]})]
    if done.differ:
        plots.append(Bars("What differs from the log", "units", names, {"units": [of.differ for of in shown]}))
    return plots
