"""``cometmq audit``: read, filter and follow the audit log of a server on this machine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from cometmq.auth.audit.entry import Entry
from cometmq.auth.audit.reader import AuditReader
from cometmq.cli.local_path import LocalPath
from cometmq.cli.moments import PAST, local_time
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.quantity import quantity
from cometmq.visible import json_text, visible

_COLUMNS: Final = (
    Column("time", "Time", time=True),
    Column("event", "Event", state=True),
    Column("account", "Account"),
    Column("address", "Address"),
    Column("request", "Request"),
    Column("resources", "Resources", prose=True),
    Column("times", "Times", right=True),
    Column("why", "Why", prose=True),
)
_FILE: Final = "audit.log"
_LIMIT: Final = 1_000


@click.command("audit")
@click.argument("file", required=False, type=LocalPath(path_type=Path))
@click.option("--since", type=PAST, help="Show only entries since this time; 1h means one hour ago.")
@click.option("--until", type=PAST, help="Show only entries up to this time.")
@click.option(
    "--account",
    help="Show only entries for this account, including requests that claimed it but were not authenticated.",
)
@click.option("--address", help="Show only entries from this address.")
@click.option("--request", help="Show only requests whose names contain this text.")
@click.option("--resource", help="Show only resources that contain this text.")
@click.option("--denied", is_flag=True, help="Show only denied requests.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=_LIMIT,
    show_default=True,
    help="Show only the newest N entries; 0 shows all entries.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue to print new entries, one per line.")
@output_option
def command(
    file: Path | None,
    since: int | None,
    until: int | None,
    account: str | None,
    address: str | None,
    request: str | None,
    resource: str | None,
    denied: bool,
    limit: int,
    follow: bool,
    output: str,
) -> None:
    """Read the audit log of a server on this machine.

    FILE is the audit log, or the directory of the store. The json and jsonl formats contain all fields of each entry.
    """
    path = _path(file)

    def wanted(entry: Entry) -> bool:
        return (
            (not denied or entry.get("allowed") is False)
            and (account is None or account in (entry.get("account"), entry.get("claimed")))
            and (address is None or _host(str(entry.get("address", ""))) == address)
            and (request is None or request.upper() in str(entry.get("request", "")))
            and (resource is None or any(resource in str(one) for one in entry.get("resources", ())))
            and ((since is None and until is None) or _is_between(entry, since, until))
        )

    with AuditReader(path, _tell_damage) as reader:
        chosen = filter(wanted, reader.read())
        entries: Iterable[Entry] = deque(chosen, maxlen=limit) if limit else chosen
        if follow:
            _follow(itertools.chain(entries, filter(wanted, reader.follow())), output)
        elif output == "json":
            click.echo(json_text(list(entries), indent=2))
        elif output == "jsonl":
            for entry in entries:
                click.echo(json_text(entry))
        else:
            show(map(_row, entries), _COLUMNS, output, title="Audit log")


def _path(file: Path | None) -> Path:
    found = _default_store() if file is None else file
    if not found.is_dir():
        return found if file is not None else found / "audit" / _FILE
    return next((path for path in (found / "audit" / _FILE, found / _FILE) if path.exists()), found / "audit" / _FILE)


def _default_store() -> Path:
    from cometmq.store.config import StoreConfig

    return Path(StoreConfig().store_path_root_dir)


def _tell_damage(file: Path, lines: int) -> None:
    notify(f"cometmq: skipped {quantity(lines, 'invalid line')} in {file}")


def _time_ms(entry: Entry) -> int | None:
    try:
        return int(datetime.fromisoformat(entry["time"]).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _is_between(entry: Entry, since: int | None, until: int | None) -> bool:
    time_ms = _time_ms(entry)
    return time_ms is not None and (since is None or time_ms >= since) and (until is None or time_ms <= until)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _row(entry: Entry) -> dict[str, Any]:
    claimed = entry.get("claimed")
    account = entry.get("account")
    return {
        "time": local_time(_time_ms(entry)),
        "event": entry.get("event"),
        "account": f"{claimed} (claimed)" if account is None and claimed is not None else account,
        "address": entry.get("address"),
        "request": entry.get("request"),
        "resources": ", ".join(map(str, entry.get("resources", ()))),
        "times": entry.get("times"),
        "why": entry.get("why"),
    }


def _follow(entries: Iterator[Entry], output: str) -> None:
    try:
        for entry in entries:
            if output in ("json", "jsonl"):
                click.echo(json_text(entry))
            else:
                click.echo("  ".join(visible(str(value)) for value in _row(entry).values() if value))
    except KeyboardInterrupt:
        return
