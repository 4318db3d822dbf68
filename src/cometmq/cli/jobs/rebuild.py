"""``cometmq pipeline rebuild``: consume queues and index from the log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cometmq.cli.failures import DONE, FAILED
from cometmq.options import load_options
from cometmq.store.config import StoreConfig


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
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the report.",
)
def command(store: Path, config: Path | None, dry_run: bool, bad_records: str | None, master: str, output: str) -> int:
    """Make the consume queues and the index of a store anew from its log, byte for byte as a broker writes them.

    The old ones go to comet/quarantine in the store. Exit codes: 0 done, or all agrees; 1 failed, or (--dry-run)
    queues differ from the log; 2 wrong use.
    """
    from cometmq.spark.rebuild import rebuild

    # Where the store lies is said here; a broker.conf may come from another machine.
    overrides = {"store_path_root_dir": str(store), "store_path_commit_log": ""}
    text = "" if config is None else config.read_text(encoding="utf-8")
    options, _ = load_options(StoreConfig, text, source=str(config), overrides=overrides)
    report = rebuild(
        store,
        dry_run=dry_run,
        config=options,
        bad_records_path=bad_records,
        master=master,
        on_step=lambda step: click.echo(f"{step} …", err=True),
    )
    click.echo(json.dumps(report.to_dict(), indent=2) if output == "json" else report.render())
    return FAILED if dry_run and report.differ else DONE
