"""``cometmq backup``: back up a broker's store while it runs, verify backups, and restore one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from cometmq.backup.create import Made, Options, create_backup, last_backup_beside
from cometmq.backup.manifest import Manifest
from cometmq.backup.verify import restore_backup, verify_backup
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.moments import local_time
from cometmq.cli.output import Progress, notify, output_option, show_one
from cometmq.quantity import quantity, size_text

_directory: Final = LocalPath(path_type=Path, file_okay=False)


@click.group("backup")
def command() -> None:
    """Back up a broker's store while it runs, verify backups, and restore one.

    Works on stores of CometMQ and of Apache RocketMQ 4.9.
    """


@command.command("create")
@click.argument("store", type=_directory)
@click.argument("target", type=_directory)
@click.option("--commit-log", type=_directory, help="storePathCommitLog, if it is not below STORE.")
@click.option(
    "--previous",
    type=_directory,
    help="Earlier backup to reuse complete files from.  [default: the newest next to TARGET]",
)
@click.option("--full", is_flag=True, help="Reuse nothing from an earlier backup.")
@click.option("--copy", is_flag=True, help="Copy every file instead of sharing blocks with the store.")
@output_option
def create(
    store: Path, target: Path, commit_log: Path | None, previous: Path | None, full: bool, copy: bool, output: str
) -> None:
    """Back up STORE to TARGET, a new directory.

    STORE is storePathRootDir; with `cometmq serve` it is broker-0 in its data directory. The broker may be running.
    """
    if full and previous is not None:
        raise WrongUseError("--full and --previous exclude each other")
    if target.absolute().is_relative_to(store.absolute()):
        raise WrongUseError("TARGET is inside STORE", next_step="choose a directory on another disk")
    if not full and previous is None:
        previous = last_backup_beside(target, store)
    made = create_backup(Options(store, target, commit_log, previous, share=not copy))
    show_one(_summarize(target, made, previous), output, title="Backup")
    if made.shared_bytes:
        notify("Files that are complete share disk blocks with the store: copy the backup to another disk as well.")


@command.command("verify")
@click.argument("backup", type=_directory)
@output_option
def verify(backup: Path, output: str) -> None:
    """Check every file of a backup against its checksum."""
    with Progress("Verifying", None) as progress:
        manifest = verify_backup(backup, report=lambda _: progress.advance(1))
    show_one(_about(backup, manifest), output, title="The backup is complete")


@command.command("restore")
@click.argument("backup", type=_directory)
@click.argument("store", type=_directory)
@output_option
def restore(backup: Path, store: Path, output: str) -> None:
    """Verify BACKUP, and copy it to STORE, a new or empty directory.

    Then start the broker with storePathRootDir=STORE.
    """
    manifest = restore_backup(backup, store)
    show_one({**_about(backup, manifest), "store": str(store)}, output, title="Restored")
    notify("Messages stored after the backup are missing; consumers receive again what they consumed since.")


def _about(backup: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": str(backup),
        "created": local_time(manifest.created_ms),
        "source": manifest.source,
        "cometmq": manifest.cometmq,
        "files": len(manifest.files),
        "bytes": manifest.data_bytes,
        "log_begin": manifest.log_begin,
        "log_end": manifest.log_end,
    }


def _summarize(target: Path, made: Made, previous: Path | None) -> dict[str, Any]:
    notify(
        f"{quantity(len(made.manifest.files), 'file')}: {size_text(made.copied_bytes)} copied, "
        f"{size_text(made.shared_bytes)} shared with the store, {size_text(made.reused_bytes)} with the last backup."
    )
    return {
        **_about(target, made.manifest),
        "copied_bytes": made.copied_bytes,
        "shared_bytes": made.shared_bytes,
        "reused_bytes": made.reused_bytes,
        "previous": None if previous is None else str(previous),
    }
