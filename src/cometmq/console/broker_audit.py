"""Reads the newest entries in the audit logs of brokers on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cometmq.auth.audit.entry import Entry
from cometmq.auth.audit.files import numbered
from cometmq.auth.audit.reader import parse
from cometmq.console.limits import AUDIT_BYTES_READ, AUDIT_LINES
from cometmq.errors import CometMQError, reason_of

_FILE: Final = "audit.log"
_MOST_LOGS: Final = 64


class AuditUnreadableError(CometMQError):
    """A broker's audit log cannot be read."""


@dataclass(frozen=True)
class AuditLine:
    """One entry of an audit log."""

    time_ms: float
    server: str
    event: str
    account: str
    address: str
    request: str
    resources: str
    why: str


def audit_files(places: Sequence[Path]) -> list[Path]:
    """Return the audit logs for the given paths: log files, stores, or directories with several stores."""
    found: list[Path] = []
    for place in places:
        if place.is_file():
            found.append(place)
        else:
            named = (place / _FILE, place / "audit" / _FILE, *sorted(place.glob(f"*/audit/{_FILE}")))
            found += [path for path in named if path.is_file()]
    return list(dict.fromkeys(found))[:_MOST_LOGS]


def newest_entries(files: Sequence[Path], wanted: str, *, denied: bool) -> list[AuditLine]:
    """Return the entries that contain a text, ignoring case, newest first.

    :param denied: return only requests that were denied.
    :raises AuditUnreadableError: a file cannot be read.
    """
    chosen: list[AuditLine] = []
    for file in files:
        of_file = 0
        for entry in _backwards(file, AUDIT_BYTES_READ // len(files)):
            if denied and entry.get("allowed") is not False:
                continue
            line = _line(entry)
            if line is None or wanted not in " ".join((*_texts(line), line.server)).casefold():
                continue
            chosen.append(line)
            of_file += 1
            if of_file >= AUDIT_LINES:
                break
    return sorted(chosen, key=lambda line: line.time_ms, reverse=True)[:AUDIT_LINES]


def _texts(line: AuditLine) -> tuple[str, ...]:
    return (line.event, line.account, line.address, line.request, line.resources, line.why)


def _backwards(path: Path, room: int) -> Iterator[Entry]:
    """Yield the last entries in a log, newest first; at most ``room`` bytes at the end of the log are read."""
    number = 0
    while room > 0:
        part = numbered(path, number)
        try:
            with part.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = max(0, size - room)
                file.seek(begin)
                lines = file.read(room).split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise AuditUnreadableError(
                f"{part} cannot be read: {reason_of(error)}",
                next_step="run the console as the user of the brokers, or let it read their audit logs",
            ) from error
        for line in reversed(lines[1:] if begin else lines):
            entry = parse(line)
            if entry is not None:
                yield entry
        room -= size
        number += 1


def _line(entry: Entry) -> AuditLine | None:
    try:
        time_ms = datetime.fromisoformat(entry["time"]).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        return None
    account, claimed, resources = entry.get("account"), entry.get("claimed"), entry.get("resources")
    if account is None and claimed is not None:
        account = f"{claimed} (claimed)"
    return AuditLine(
        time_ms=time_ms,
        server=str(entry.get("server", "")),
        event=str(entry.get("event", "")),
        account="" if account is None else str(account),
        address=str(entry.get("address", "")),
        request=str(entry.get("request", "")),
        resources=", ".join(map(str, resources)) if isinstance(resources, list) else "",
        why=str(entry.get("why") or ""),
    )
