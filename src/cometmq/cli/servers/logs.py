"""Logging for the commands: level, format (text or JSON lines) and destination (stderr or a file).

While the server runs, a log file may be renamed or removed, for example by logrotate. The next line creates a new file;
SIGHUP creates it immediately.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import say
from cometmq.visible import json_text, visible

R = TypeVar("R")

LEVELS: Final = ("debug", "info", "warning", "error")


class LogLine(logging.Formatter):
    """Formats log lines as text. Untrusted text cannot forge additional lines."""

    def __init__(self, server: str = "") -> None:
        """Set the server name for each line, if several servers write to one destination."""
        super().__init__("%(asctime)s %(levelname)s %(server)s%(name)s: %(message)s", defaults={"server": server})

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line without its traceback."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Format the traceback that follows the line."""
        return visible(super().formatException(ei), lines=True)


class JsonLine(logging.Formatter):
    """Formats log lines as JSON objects with time, level, logger, message and, after a failure, a traceback."""

    def __init__(self, server: str = "") -> None:
        """Set the server name for each line, if several servers write to one destination."""
        super().__init__()
        self._server = {"server": server} if server else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._server,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line)


class LogFile(WatchedFileHandler):
    """Appends log lines to a file, and creates a new file if it was renamed or removed.

    Lines that cannot be written to the file, for example because the disk is full, are written to stderr.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            super().emit(record)
        except OSError:  # the directory is gone or no longer accessible
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Write the line to stderr."""
        say(f"{self.format(record)}\n")

    def reopen(self) -> None:
        """Create the file again if it was renamed or removed."""
        self.acquire()
        try:
            with suppress(OSError):
                self.reopenIfNeeded()
        finally:
            self.release()


def start_log(level: str = "warning", form: str = "text", file: Path | None = None, server: str = "") -> None:
    """Start writing log messages with this level or above, each on one line.

    :param form: ``text`` or ``json``.
    :param file: destination; None for stderr.
    :param server: server name in every line.
    :raises OSError: the file cannot be opened.
    """
    handler = logging.StreamHandler() if file is None else LogFile(file, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(JsonLine(server) if form == "json" else LogLine(f"{server} " if server else ""))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cometmq").setLevel(level.upper())


def reopen_logs() -> None:
    """Create log files again that were renamed or removed."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile):
            handler.reopen()


def log_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--log-level``, ``--log-format`` and ``--log-file``, which apply from the start of the command."""

    @functools.wraps(command)
    def with_logs(*, log_level: str, log_format: str, log_file: Path | None, log_name: str, **others: Any) -> R:
        if click.get_current_context().invoked_subcommand is None:
            start_log(log_level, log_format, log_file, log_name)
        return command(**others)

    for option in (
        click.option("--log-name", default="", hidden=True, help="Server name to include in each log line."),
        click.option(
            "--log-file",
            type=LocalPath(path_type=Path, dir_okay=False),
            help="Append log lines to this file instead of stderr.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Log format.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS, case_sensitive=False),
            default="info",
            show_default=True,
            help="Minimum log level.",
        ),
    ):
        with_logs = option(with_logs)
    return with_logs
