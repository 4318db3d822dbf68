"""Changes: who changed what with this console, from its own audit log."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from cometmq.auth.audit.reader import AuditReader
from cometmq.console.page import Ask, ChangesNotAllowedError, page

_NEWEST: Final = 200


@dataclass(frozen=True)
class ChangeLine:
    """One change, made or not."""

    time_ms: float | None
    by: str
    address: str
    change: str
    subject: str
    details: str
    outcome: str


async def show_changes(ask: Ask) -> Response:
    """Show the newest changes whose fields contain a text."""
    if not ask.may_change:
        raise ChangesNotAllowedError(
            ask.t("only who may change things sees who changed what"),
            next_step=ask.t("log in with an account that may change things, or start it with --allow-changes"),
        )
    lines = await asyncio.to_thread(_newest, ask.console.options.audit_file, ask.text("q").casefold())
    return ask.page("changes/list.html", lines=lines, most=_NEWEST)


def _newest(path: Path, wanted: str) -> list[ChangeLine]:
    """Read the log, the newest change first; lines that are no entries are left out."""
    if not path.exists():
        return []
    with AuditReader(path, lambda *_: None) as reader:
        chosen: deque[ChangeLine] = deque(maxlen=_NEWEST)
        for entry in reader.read():
            if entry.get("event") == "change":
                line = _line(entry)
                if wanted in f"{line.by} {line.change} {line.subject} {line.details} {line.outcome}".casefold():
                    chosen.append(line)
    return list(reversed(chosen))


def _line(entry: dict[str, Any]) -> ChangeLine:
    try:
        time_ms = datetime.fromisoformat(str(entry.get("time"))).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        time_ms = None
    details = entry.get("details")
    return ChangeLine(
        time_ms=time_ms,
        by=str(entry.get("by", "")),
        address=str(entry.get("from", "")),
        change=str(entry.get("change", "")),
        subject=str(entry.get("subject", "")),
        details=", ".join(f"{name}: {value}" for name, value in details.items()) if isinstance(details, dict) else "",
        outcome=str(entry.get("outcome", "")),
    )


ROUTES = (page("/changes", show_changes),)
