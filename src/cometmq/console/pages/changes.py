"""The page with changes that visitors made in this console, read from its own audit log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from cometmq.auth.audit.reader import AuditReader
from cometmq.client.errors import BrokerError
from cometmq.console.broker_audit import audit_files, newest_entries
from cometmq.console.page import Ask, ChangesNotAllowedError, page
from cometmq.remoting.codes import ResponseCode
from cometmq.threads import in_thread

_NEWEST: Final = 200


@dataclass(frozen=True)
class ChangeLine:
    """One change, which may have failed."""

    time_ms: float | None
    by: str
    address: str
    change: str
    subject: str
    details: str
    outcome: str


def _demand_changer(ask: Ask) -> None:
    if not ask.may_change:
        raise ChangesNotAllowedError(
            ask.t("only accounts that may change things can see the audit log"),
            next_step=ask.t("log in with an account that may change things, or start the console with --allow-changes"),
        )


async def show_changes(ask: Ask) -> Response:
    """Show the newest changes with a field that contains the search text."""
    _demand_changer(ask)
    lines = await in_thread(_newest, ask.console.options.audit_file, ask.text("q").casefold())
    return ask.page("changes/list.html", lines=lines, most=_NEWEST)


async def show_brokers(ask: Ask) -> Response:
    """Show the newest entries in the brokers' audit logs. The visitor must be allowed to read users or, if there are no
    users, configurations.
    """
    _demand_changer(ask)
    try:
        await ask.admin.users()
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        for address in (await ask.admin.masters()).values():
            await ask.admin.broker_config(address)
    files = await in_thread(audit_files, ask.console.options.audit_logs)
    wanted, denied = ask.text("q").casefold(), ask.text("denied") == "yes"
    lines = await in_thread(newest_entries, files, wanted, denied=denied)
    return ask.page("changes/brokers.html", files=files, lines=lines)


def _newest(path: Path, wanted: str) -> list[ChangeLine]:
    """Read the log, newest change first. Malformed lines are skipped."""
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


ROUTES = (page("/changes", show_changes), page("/changes/brokers", show_brokers))
