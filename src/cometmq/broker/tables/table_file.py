"""A table's file, which is loaded once and written after changes.

A file that cannot be read is set aside, and :mod:`cometmq.broker.tables.table_recovery` repairs the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from cometmq import fastjson
from cometmq.config_file import ConfigFile
from cometmq.remoting.bodies import BodyError, decode_body, to_builtins
from cometmq.store.failure_log import FailureLog
from cometmq.store.recovery.load import Findings

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SHOWN_CHARS: Final = 200
"""Maximum length of an error message in a log line."""
_SHOWN_NAMES: Final = 8


def shown_names(names: Iterable[str]) -> str:
    """Return a text with the first few names and the number of the other names."""
    names = list(names)
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more


def set_aside(path: Path, why: str, root: Path | None = None) -> str:
    """Move a file of a store into ``comet/quarantine``; return a line for the log.

    :param root: the store's directory; by default the directory above the ``config`` or ``comet`` that contains the
        file.
    """
    found = Findings(root or path.parent.parent)
    try:
        found.set_aside(path, why)
    except OSError as error:
        return f"{found.name(path)}: {why}; it cannot be set aside: {error.strerror}"
    return found.lines[0]


def offset_table(loaded: Any) -> dict[str, Any]:
    """Return the offsets under ``offsetTable`` in a file."""
    table = loaded["offsetTable"]
    if not isinstance(table, dict):
        raise TypeError("offsetTable is not a JSON object")
    return table


def int64(value: Any) -> int:
    """Convert a number or decimal text from a file to an offset.

    :raises ValueError: the value is not an offset.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"invalid offset {value!r}")
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"invalid offset {number}")
    return number


class TableFile:
    """Stores a table in ``config/NAME.json`` (``ConfigManager``).

    An unusable file or ``.bak`` file is set aside, so that the broker can still serve its messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ConfigFile(path)
        self._due = False
        self._failures = FailureLog(_log)
        self.failure: Exception | None = None
        """The reason why the last write failed, or ``None``."""
        self.is_whole = True
        """True if ``load`` found everything that was last written; False if the file was damaged or missing."""
        self.findings: list[str] = []
        """A line for each problem that ``load`` found."""

    def load(self, form: Callable[[Any], T]) -> T | None:
        """Return the table from the file, or from its ``.bak`` file; return ``None`` if neither can be used.

        :param form: builds the table from the JSON; raises ``ValueError``, ``TypeError`` or ``BodyError`` for unusable
            JSON.
        """
        self.findings = []
        backup = self.path.with_name(self.path.name + ".bak")
        found = self._read(self.path, form)
        self.is_whole = found is not None
        if found is None:
            found = self._read(backup, form)
            if found is not None:
                self._due = True
                name = f"{backup.parent.name}/{backup.name}"
                self.findings.append(f"using {name}, the table before its last change")
        return found

    def _read(self, path: Path, form: Callable[[Any], T]) -> T | None:
        try:
            return form(self._parsed(path))
        except FileNotFoundError:
            return None
        except BodyError as error:
            why = error.message
        except OSError as error:
            why = error.strerror or str(error)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
        self.findings.append(set_aside(path, f"cannot be used: {why[:_SHOWN_CHARS]}"))
        return None

    def _parsed(self, path: Path) -> Any:
        """Return the parsed JSON from a file."""
        return fastjson.loads(path.read_bytes())

    def load_body(self, kind: type[T]) -> T | None:
        """Return the table as a typed body."""
        return self.load(lambda loaded: decode_body(kind, fastjson.dumps(loaded)))

    @property
    def failed(self) -> bool:
        """Return whether the last write failed."""
        return self.failure is not None

    def note_failure(self, reason: Exception) -> None:
        """Record that a write failed, so that the next ``save`` writes the file again."""
        self._due, self.failure = True, reason

    def changed(self) -> None:
        """Record that the table changed, so that the next ``save`` writes the file."""
        self._due = True

    def take_due(self) -> bool:
        """Return whether a write is due, and mark it as done; if the result is True, the caller must call ``write``."""
        due, self._due = self._due, False
        return due

    def write(self, table: Any) -> None:
        """Write the table from a body; if the disk is full or broken, the write becomes due again."""
        self.write_text(fastjson.dumps_pretty(to_builtins(table)))

    def write_text(self, text: bytes | Iterable[bytes]) -> None:
        """Write the table from a text, complete or in pieces; if the disk is full or broken, the write becomes due
        again.
        """
        try:
            self._file.save(text)
            self.failure = None
            self._failures.ended(f"write {self.path}")
        except OSError as error:
            self.note_failure(error)
            self._failures.failed(f"write {self.path}", error)
