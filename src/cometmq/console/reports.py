"""Reads reports of Spark jobs: the JSON files in one directory, which ``cometmq pipeline … -o json`` writes.

Reports are untrusted: numbers, texts, lists and tables are shown according to their types, whatever their names. Only
regular files directly in the directory are opened, so a link cannot lead outside.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.console.limits import (
    MAX_REPORT_BYTES,
    MAX_REPORT_COLUMNS,
    MAX_REPORT_FILES,
    MAX_REPORT_ROWS,
    MAX_REPORT_TABLES,
    MAX_REPORTS,
)
from cometmq.errors import CometMQError, reason_of

_SUFFIX: Final = ".json"
_CELL_CHARS: Final = 200
_NOT_FIGURES: Final = frozenset({"title", "verdict", "exit_code", "warnings"})

RUNNING: Final = "running"
SILENT: Final = "silent"
"""State of a report that a running job has not renewed for :data:`_SILENT_MS`."""
DONE: Final = "done"
LOOK: Final = "look"
FAILED: Final = "failed"
DAMAGED: Final = "damaged"
_PARTLY_DONE: Final = 3
_SILENT_MS: Final = 120_000
"""A running job renews its report every ten seconds."""


class ReportError(CometMQError):
    """A report cannot be shown, or the directory of reports cannot be read."""


class _Head(msgspec.Struct):
    """The members that all reports have, and some members that many reports have. Reports from earlier versions have no
    title.
    """

    exit_code: int
    title: str = ""
    verdict: str = ""
    seconds: float | None = None
    warnings: list[str] = []
    running: bool = False


@dataclass(frozen=True)
class ReportLine:
    """A report as shown in the list."""

    name: str
    modified_ms: float
    size: int
    state: str
    title: str = ""
    verdict: str = ""
    seconds: float | None = None
    warnings: int = 0


@dataclass(frozen=True)
class ReportTable:
    """A table made from a list or a group of values in a report. Cells are numbers, booleans or texts."""

    caption: str
    heads: Sequence[str]
    """Column titles, or empty for a list of single values."""
    rows: Sequence[Sequence[Any]]
    total: int
    """Number of rows in the report. The page may show fewer rows."""


@dataclass(frozen=True)
class ShownReport:
    """One report, as shown on its page."""

    line: ReportLine
    figures: Sequence[tuple[str, float]]
    facts: Sequence[tuple[str, Any]]
    warnings: Sequence[str]
    tables: Sequence[ReportTable]


def reports_in(directory: Path, now_ms: float) -> list[ReportLine]:
    """Return the newest reports, newest first.

    :param now_ms: the time in ms since 1970.
    :raises ReportError: the directory cannot be read.
    """
    found: list[tuple[float, str, int]] = []
    try:
        with os.scandir(directory) as entries:
            for _, entry in zip(range(MAX_REPORT_FILES), entries, strict=False):
                if _is_name(entry.name) and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime, entry.name, about.st_size))
    except OSError as error:
        raise ReportError(
            f"the reports in {directory} cannot be read: {reason_of(error)}",
            next_step="start the console with --reports and a directory that it may read",
        ) from error
    newest = sorted(found, reverse=True)[:MAX_REPORTS]
    lines = [_line(str(directory), name, modified, size) for modified, name, size in newest]
    return [
        replace(line, state=SILENT) if line.state == RUNNING and now_ms - line.modified_ms > _SILENT_MS else line
        for line in lines
    ]


def report_of(directory: Path, name: str, now_ms: float) -> ShownReport | None:
    """Read one report, or return ``None`` if the directory contains no report with this name.

    :raises ReportError: the file is too large, or is not a report.
    """
    line = next((one for one in reports_in(directory, now_ms) if one.name == name), None)
    if line is None:
        return None
    try:
        content = msgspec.json.decode(_content(str(directory), name))
        head = msgspec.convert(content, _Head)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ReportError(
            f"{name} is not a report of a job: {str(error)[:200]}",
            next_step="write it again: cometmq pipeline … -o json > REPORT.json",
        ) from error
    members = {key: value for key, value in content.items() if key not in _NOT_FIGURES}
    figures = [(key, value) for key, value in members.items() if _is_number(value)]
    facts = [(key, value) for key, value in members.items() if isinstance(value, str | bool)]
    tables = [table for key, value in members.items() if (table := _table(key, value)) is not None]
    return ShownReport(line, figures, facts, head.warnings[:MAX_REPORT_ROWS], tables[:MAX_REPORT_TABLES])


def _is_name(name: str) -> bool:
    """Return True if a file may be a report. A name that is not UTF-8 cannot be part of an address."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name.endswith(_SUFFIX) and not name.startswith(".")


@lru_cache(MAX_REPORTS * 2)
def _line(directory: str, name: str, modified: float, size: int) -> ReportLine:
    """Return a report's list entry. The file is read only if it has changed."""
    try:
        head = msgspec.json.decode(_content(directory, name), type=_Head)
    except (msgspec.MsgspecError, RecursionError, ValueError, ReportError):
        return ReportLine(name, modified * 1000, size, DAMAGED)
    state = DONE if head.exit_code == 0 else LOOK if head.exit_code == _PARTLY_DONE else FAILED
    if head.running and state == DONE:
        state = RUNNING
    texts = str(_cell(head.title)), str(_cell(head.verdict))
    return ReportLine(name, modified * 1000, size, state, *texts, head.seconds, len(head.warnings))


def _content(directory: str, name: str) -> bytes:
    try:
        number = os.open(Path(directory) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise ReportError(f"{name} is not a regular file")
            content = file.read(MAX_REPORT_BYTES + 1)
    except OSError as error:
        raise ReportError(f"{name} cannot be read: {reason_of(error)}") from error
    if len(content) > MAX_REPORT_BYTES:
        raise ReportError(
            f"{name} has more than {MAX_REPORT_BYTES:,} bytes",
            next_step="open it with another program, or write a report of fewer topics",
        )
    return content


def _table(caption: str, value: Any) -> ReportTable | None:
    """Return the table for a list or an object, or ``None`` for empty and other values."""
    if isinstance(value, Mapping) and value:
        rows: list[Sequence[Any]] = [(key, _cell(one)) for key, one in list(value.items())[:MAX_REPORT_ROWS]]
        return ReportTable(caption, (), rows, len(value))
    if not isinstance(value, list) or not value:
        return None
    shown = value[:MAX_REPORT_ROWS]
    if not all(isinstance(one, Mapping) for one in shown):
        return ReportTable(caption, (), [(_cell(one),) for one in shown], len(value))
    heads = list(dict.fromkeys(key for one in shown for key in one))[:MAX_REPORT_COLUMNS]
    return ReportTable(caption, heads, [[_cell(one.get(key)) for key in heads] for one in shown], len(value))


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool) or _is_number(value):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL_CHARS else text[:_CELL_CHARS] + "…"


def _is_number(value: Any) -> bool:
    """Return True if a value is a number whose digits all fit on a page."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**18
