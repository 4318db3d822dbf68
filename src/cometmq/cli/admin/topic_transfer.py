"""``cometmq topic export`` and ``import``: write a cluster's settings to a file, and apply them to a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from cometmq.cli.admin.changes import confirm_changes
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option
from cometmq.cli.local_path import LocalFile, LocalPath
from cometmq.cli.output import Progress, notify
from cometmq.client.admin import Admin
from cometmq.client.admin.settings_file import MAX_DOCUMENT_BYTES, Document, parse_document
from cometmq.client.admin.settings_transfer import export_settings, plan_import
from cometmq.durable import replace_file
from cometmq.quantity import quantity


@click.command("export")
@click.option("--to", "path", type=LocalPath(dir_okay=False, path_type=Path), help="File to write.  [default: stdout]")
@namesrv_option
def export(path: Path | None, namesrv: str) -> None:
    """Export topics, groups, policies and quotas as JSON.

    Messages, offsets, users and passwords are not exported.
    """
    document = administer(namesrv, export_settings)
    if path is None:
        sys.stdout.buffer.write(document.encode())
    else:
        replace_file(path, document.encode())
    notify(_contents(document))


@click.command("import")
@click.argument("file", type=LocalFile("rb"))
@click.option("-y", "--yes", "--execute", "yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--hide-messages", is_flag=True, help="Remove read queues even if they contain messages.")
@dry_run_option
@namesrv_option
def import_settings(file: IO[bytes], yes: bool, hide_messages: bool, namesrv: str) -> None:
    """Apply the settings in FILE to a cluster. If FILE is -, read stdin.

    Differences are shown first. Settings that exist only in the cluster remain unchanged. It is safe to repeat the
    command.
    """
    document = parse_document(file.read(MAX_DOCUMENT_BYTES + 1), str(file.name))

    async def work(admin: Admin) -> None:
        plan = await plan_import(admin, document, hide_messages=hide_messages)
        if confirm_changes("the cluster", plan.changes, yes=yes):
            with Progress("Changing", len(plan.changes)) as progress:
                await plan.execute(progress.advance)
            notify(f"Changed {quantity(len(plan.changes), 'setting')} of the cluster.")

    administer(namesrv, work)


def _contents(document: Document) -> str:
    parts = [quantity(len(document.topics), "topic"), quantity(len(document.groups), "group")]
    if document.policies is not None:
        parts.append(f"{len(document.policies):,} policy entries")
    if document.quotas is not None:
        parts.append(quantity(len(document.quotas), "quota"))
    return f"Exported: {', '.join(parts)}."
