"""``cometmq backup``: back up a broker's store while the broker runs, and verify and restore backups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from cometmq.backup.create import Made, Options, create_backup
from cometmq.backup.manifest import Manifest
from cometmq.backup.opening import backups_in, open_backup
from cometmq.backup.place import BackupPlace, newest
from cometmq.backup.verify import restore_backup, verify_backup
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, Progress, notify, output_option, show, show_one
from cometmq.cli.storage_options import StorageUrl, storage_option
from cometmq.quantity import quantity, size_text
from cometmq.storage import StorageOptions

_directory: Final = LocalPath(path_type=Path, file_okay=False)
_COLUMNS: Final = (
    Column("backup", "Backup"),
    Column("created", "Created"),
    Column("bytes", "Bytes", right=True),
    Column("files", "Files", right=True),
    Column("source", "Store"),
)


@click.group("backup")
def command() -> None:
    """Back up a broker's store while the broker runs, and verify and restore backups.

    Works on stores of CometMQ and of Apache RocketMQ 4.9.
    """


@command.command("create")
@click.argument("store", type=_directory)
@click.argument("target", type=StorageUrl())
@click.option(
    "--commit-log", type=_directory, help="Commit log directory (storePathCommitLog), if it is not below STORE."
)
@click.option(
    "--previous",
    type=StorageUrl(),
    help="Earlier backup to reuse complete files from.  [default: the newest next to TARGET]",
)
@click.option("--full", is_flag=True, help="Do not reuse files from an earlier backup.")
@click.option("--copy", is_flag=True, help="Copy every file instead of sharing disk blocks with the store.")
@storage_option
@output_option
def create(
    store: Path,
    target: str,
    commit_log: Path | None,
    previous: str | None,
    full: bool,
    copy: bool,
    storage: StorageOptions,
    output: str,
) -> None:
    """Back up STORE to TARGET, a new directory or URL.

    An example of a URL is s3://bucket/backups/2026-11-23. STORE is the broker's storePathRootDir; with `cometmq serve`,
    it is broker-0 in the data directory. The broker may be running.
    """
    if full and previous is not None:
        raise WrongUseError("--full and --previous cannot be used together")
    if Path(target).is_relative_to(store.absolute()):
        raise WrongUseError("TARGET is inside STORE", next_step="choose a directory on another disk")
    place = open_backup(target, storage, share=not copy)
    before = None
    if previous is not None:
        before = open_backup(previous, storage)
    elif not full:
        before = newest(place.beside(), str(store.absolute()))
    with Progress("Copying", _files_in(store)) as progress:
        made = create_backup(Options(store, place, commit_log, before), added=lambda _: progress.advance(1))
    show_one(_summarize(place, made, before), output, title="Backup")
    if made.shared_bytes:
        notify("Complete files share disk blocks with the store, so also copy the backup to another disk.")


@command.command("list")
@click.argument("place", type=StorageUrl())
@storage_option
@output_option
def list_backups(place: str, storage: StorageOptions, output: str) -> None:
    """List the complete backups in a directory or below a URL."""
    found = [(backup, backup.read_manifest()) for backup in backups_in(place, storage)]
    if not found:
        notify(f"{place} has no complete backup.")
    rows = [_about(backup, manifest) for backup, manifest in sorted(found, key=lambda pair: pair[1].created_ms)]
    show(rows, _COLUMNS, output, title="Backups")


@command.command("verify")
@click.argument("backup", type=StorageUrl())
@storage_option
@output_option
def verify(backup: str, storage: StorageOptions, output: str) -> None:
    """Check every file in a backup against its checksum."""
    place = open_backup(backup, storage)
    with Progress("Verifying", len(place.read_manifest().files)) as progress:
        manifest = verify_backup(place, report=lambda _: progress.advance(1))
    show_one(_about(place, manifest), output, title="The backup is complete")


@command.command("restore")
@click.argument("backup", type=StorageUrl())
@click.argument("store", type=_directory)
@storage_option
@output_option
def restore(backup: str, store: Path, storage: StorageOptions, output: str) -> None:
    """Copy BACKUP to STORE and verify every file.

    STORE must be a new or empty directory. Afterwards, start the broker with storePathRootDir=STORE.
    """
    place = open_backup(backup, storage)
    with Progress("Restoring", len(place.read_manifest().files)) as progress:
        manifest = restore_backup(place, store, report=lambda _: progress.advance(1))
    show_one({**_about(place, manifest), "store": str(store)}, output, title="Restored")
    notify(
        "Messages stored after the backup are missing. Consumers receive the messages again that they consumed after "
        "it."
    )


@command.command("delete")
@click.argument("backup", type=StorageUrl())
@storage_option
@click.option("--dry-run", is_flag=True, help="Show the backup without deleting anything.")
def delete(backup: str, storage: StorageOptions, dry_run: bool) -> None:
    """Delete BACKUP and the files that no other backup needs.

    In an object store, files that backups share are kept for one more day, since a backup that is being created may
    reuse them.
    """
    place = open_backup(backup, storage)
    manifest = place.read_manifest()
    if not dry_run:
        place.delete()
    done = "Would delete" if dry_run else "Deleted"
    notify(f"{done} {place.name}, created {local_time(manifest.created_ms)}, {size_text(manifest.data_bytes)}.")


def _files_in(store: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(store))


def _about(backup: BackupPlace, manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": backup.name,
        "created": local_time(manifest.created_ms),
        "source": manifest.source,
        "cometmq": manifest.cometmq,
        "files": len(manifest.files),
        "bytes": manifest.data_bytes,
        "log_begin": manifest.log_begin,
        "log_end": manifest.log_end,
    }


def _summarize(target: BackupPlace, made: Made, previous: BackupPlace | None) -> dict[str, Any]:
    notify(
        f"{quantity(len(made.manifest.files), 'file')}: {size_text(made.copied_bytes)} copied, "
        f"{size_text(made.shared_bytes)} shared with the store, {size_text(made.reused_bytes)} with the last backup."
    )
    return {
        **_about(target, made.manifest),
        "copied_bytes": made.copied_bytes,
        "shared_bytes": made.shared_bytes,
        "reused_bytes": made.reused_bytes,
        "previous": None if previous is None else previous.name,
    }
