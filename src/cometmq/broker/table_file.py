"""The file of one of the broker's tables: read once, written after changes, tried again when the disk was full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cometmq import fastjson
from cometmq.config_file import ConfigFile
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import BodyError, decode_body, to_builtins

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TableFileError(CometMQError):
    """A file under ``config/`` that cannot be used; starting without it would lose what it says."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}",
            next_step="repair it or put back a copy; removing it and its .bak starts with an empty table",
        )


class TurnWriter:
    """Writes the tables that changed in a turn of the loop once, at its end, before the turn is answered.

    However many topics and groups one request, or all requests of a turn, bring into being: the files are
    written once.

    :param write: writes all tables that are due.
    :param schedule: sees to it that a turn ends soon.
    """

    def __init__(self, write: Callable[[], None], schedule: Callable[[], None]) -> None:
        self._write = write
        self._schedule = schedule
        self._changed = False

    def changed(self) -> None:
        """A table changed in this turn."""
        self._changed = True
        self._schedule()

    def end_turn(self) -> None:
        """Write what changed; what cannot be written is not tried again at each turn."""
        if self._changed:
            self._changed = False
            self._write()


class TableFile:
    """Keeps a table in ``config/NAME.json`` (``ConfigManager``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ConfigFile(path)
        self._due = False
        self.failed = False
        """Whether the last write failed."""

    def load_raw(self) -> Any | None:
        """What the file holds, ``None`` when there is none.

        :raises TableFileError: neither it nor its ``.bak`` can be read.
        """
        try:
            return self._file.load()
        except (OSError, fastjson.FastjsonError) as error:
            raise TableFileError(self.path, error) from error

    def load(self, kind: type[T]) -> T | None:
        """The table as a typed body, ``None`` when there is none.

        :raises TableFileError: it cannot be read, or is not of that form.
        """
        loaded = self.load_raw()
        if loaded is None:
            return None
        try:
            return decode_body(kind, fastjson.dumps(loaded))
        except BodyError as error:
            raise TableFileError(self.path, error.message) from error

    def changed(self) -> None:
        """The table changed: the next ``save`` writes it."""
        self._due = True

    def take_due(self) -> bool:
        """Whether there is something to write; who is told so must ``write`` it."""
        due, self._due = self._due, False
        return due

    def save(self, table: Any) -> None:
        """Write a body if the table changed."""
        if self.take_due():
            self.write(table)

    def write(self, table: Any) -> None:
        """Write a body; on a full or broken disk it is due again."""
        try:
            self._file.save(fastjson.dumps_pretty(to_builtins(table)))
            self.failed = False
        except OSError as error:
            self._due = self.failed = True
            _log.error("cannot write %s: %s; it will be tried again", self.path, error)
