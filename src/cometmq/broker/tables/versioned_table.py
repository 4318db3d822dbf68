"""A table of named rows with a version and a file, such as the table of topics (``ConfigManager``).

A change is appended to the file's journal before its request is answered; only the changed row is written. The file's
text is cached row by row, so that writing the complete file formats only the rows that changed since the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq import fastjson
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.slices import batches
from cometmq.broker.tables.changed_names import ChangedNames
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.clock import Clock
from cometmq.remoting.bodies import Body, BodyError, DataVersion, body_of, decode_body, to_builtins
from cometmq.store.disk import Disk
from cometmq.store.table_journal import MADE, TABLE_DEPTH

INT32_MAX: Final = 2**31 - 1

R = TypeVar("R", bound=Body)

_ROWS_FORMATTED_AT_ONCE: Final = TABLE_ROWS_PER_SLICE // 2
"""Number of rows that are formatted in one round of the event loop, which takes about 5 ms."""
_DEPTH: Final = 2
"""Nesting depth of a row in the file."""


class RowTexts:
    """The cached file text of a table with a version and one map of rows.

    :param field: the name of the map in the file; it sorts after ``dataVersion``.
    """

    def __init__(self, field: str) -> None:
        self._field = fastjson.dumps(field)
        self._rows: dict[str, bytes] = {}
        self._stale: dict[str, None] = {}

    def changed(self, name: str) -> None:
        """Record that a row was added, replaced or removed."""
        self._stale[name] = None

    def _refreshed(self, table: Mapping[str, Body]) -> Iterator[None]:
        """Format the changed rows, slice by slice."""
        for names in batches(list(self._stale), _ROWS_FORMATTED_AT_ONCE):
            for name in names:
                body = table.get(name)
                if body is None:
                    self._rows.pop(name, None)
                else:
                    self._rows[name] = fastjson.dumps(name) + b":" + fastjson.dumps_pretty(to_builtins(body), _DEPTH)
                self._stale.pop(name, None)
            yield

    def pieces(self, version: DataVersion, table: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the complete file in fastjson's pretty format, slice by slice; rows may change between slices."""
        for _ in self._refreshed(table):
            yield b""
        yield b'{\n\t"dataVersion":%s,\n\t%s:{' % (fastjson.dumps_pretty(to_builtins(version), 1), self._field)
        before = b"\n\t\t"
        for names in batches(list(self._rows), TABLE_ROWS_PER_SLICE):
            rows = [self._rows[name] for name in names if name in self._rows]
            if rows:
                yield before + b",\n\t\t".join(rows)
                before = b",\n\t\t"
        yield b"\n\t}\n}" if before.startswith(b",") else b"}\n}"


class VersionedTable(Generic[R]):
    """The rows of a table by name, with their version and their file ``config/NAME.json``.

    A subclass defines the built-in rows and the reasons to refuse a row. ``on_change`` is called with the name of each
    row that changes.
    """

    kind: type[R]
    """The type of a row."""
    noun: str
    """The word for a row in log lines, such as "topic" or "group"."""
    field: str
    """The name of the table in its file."""
    is_never_empty = False
    """True if the table is never empty, so that a file without rows must be damaged."""

    def __init__(self, path: Path, *, clock: Clock, disk: Disk | None = None) -> None:
        self._file = JournaledFile(path, depth=TABLE_DEPTH, clock=clock, disk=disk)
        self._clock = clock
        self._table: dict[str, R] = {}
        self._rows = RowTexts(self.field)
        self.writer: Final = RowWriter(self._file, self._changed_rows, self._pieces)
        self.changes: Final = ChangedNames()
        """The names of changed rows, for slaves."""
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)
        self.on_change: list[Callable[[str], None]] = []
        self.is_whole = True
        """True if ``load`` found every row that was last written."""
        self.on_due: Callable[[], None] = self.save
        """Called after each change, which must be written before its request is answered."""

    # --- for subclasses -----------------------------------------------------------------------
    def name_of(self, row: R) -> str:
        """Return the name of a row."""
        raise NotImplementedError

    def built_in(self) -> Iterable[R]:
        """Return the built-in rows; rows with the same names from the file replace them."""
        raise NotImplementedError

    def wrong_name(self, name: str) -> str | None:
        """Return the reason to refuse a name, or ``None`` if it is valid."""
        raise NotImplementedError

    def wrong_row(self, row: R) -> str | None:
        """Return the reason to skip a row from the file, or ``None`` if it is valid."""
        raise NotImplementedError

    # --- reading ------------------------------------------------------------------------------
    def get(self, name: str) -> R | None:
        """Return the row with a name, without creating it."""
        return self._table.get(name)

    @property
    def table(self) -> Mapping[str, R]:
        """Return all rows by name; callers must not modify the result."""
        return self._table

    @property
    def cannot_be_saved(self) -> bool:
        """Return whether the last write of the file failed."""
        return self._file.failed

    # --- loading ------------------------------------------------------------------------------
    def load(self) -> list[str]:
        """Load the file and add the built-in rows; return a line for each problem."""
        findings: list[str] = []
        stored = self._file.load(self._form)
        if stored is not None:
            version, entries = stored
            self.version = version or self.version
            for name, entry in entries.items():
                wrong = self._add(name, entry)
                if wrong is not None:
                    self.is_whole = False
                    findings.append(f"{self._file.path.name}: ignored {self.noun} {name!r}: {wrong}")
        self.is_whole = self.is_whole and self._file.is_whole and bool(self._table or not self.is_never_empty)
        findings[:0] = self._file.findings
        if not self._file.is_whole:
            self._file.changed()
        for name in self._file.added:
            self.writer.added(name)
            self.version = self._next_version()
        for row in self.built_in():
            if self.wrong_name(self.name_of(row)) is None:
                self._table.setdefault(self.name_of(row), row)
        self._note_changed(self._table)
        return findings

    def _form(self, loaded: Any) -> tuple[DataVersion | None, dict[str, Any]]:
        """Return the version, if the file has a usable one, and the rows."""
        entries = loaded[self.field]
        if not isinstance(entries, dict):
            raise TypeError(f"{self.field} is not a JSON object")
        try:
            return decode_body(DataVersion, fastjson.dumps(loaded.get("dataVersion"))), entries
        except (BodyError, TypeError, ValueError):
            return None, entries

    def _add(self, name: str, entry: Any) -> str | None:
        """Add a row from the file, or return the reason to skip it."""
        try:
            row = body_of(self.kind, entry)
        except (BodyError, TypeError, ValueError) as error:
            return str(error)
        wrong = self.wrong_name(name)
        if wrong is None and self.name_of(row) != name:
            wrong = "its entry has a different name"
        wrong = wrong or self.wrong_row(row)
        if wrong is None:
            self._table[name] = row
        return wrong

    # --- changing -----------------------------------------------------------------------------
    def put(self, row: R) -> None:
        """Add or replace a row whose name has been checked."""
        name = self.name_of(row)
        assert self.wrong_name(name) is None, name
        if name not in self._table:
            self.writer.added(name)
        self._table[name] = row
        self._changed(name)

    def delete(self, name: str) -> bool:
        """Remove a row; return whether it existed."""
        if self._table.pop(name, None) is None:
            return False
        self._changed(name)
        return True

    def new_version(self) -> None:
        """Make nameservers and slaves copy the complete table again, after a change that affects all rows."""
        self.version = self._next_version()
        self._file.changed()
        self.on_due()

    def _next_version(self) -> DataVersion:
        return DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)

    def _changed(self, name: str) -> None:
        self._rows.changed(name)
        self.writer.changed(name)
        self.changes.note(name)
        self.new_version()
        for listener in self.on_change:
            listener(name)

    def take_over(
        self, rows: Iterable[tuple[str, R]], version: DataVersion, removed: Iterable[str] | None = None
    ) -> Generator[None, None, None]:
        """Replace the rows with a copy of the master's table and its version, except rows with invalid names.

        This function pauses after each slice; the version changes after the last one.

        :param removed: the rows to remove; ``None`` for all rows that are not in ``rows``.
        """
        is_same = version == self.version
        gone = dict.fromkeys(self._table if removed is None else removed)
        for some in batches(rows, TABLE_ROWS_PER_SLICE):
            differing = []
            for name, row in some:
                if self.name_of(row) == name and self.wrong_name(name) is None:
                    gone.pop(name, None)
                    before = self._table.get(name)
                    if before is None:
                        self.writer.added(name)
                    if before != row:
                        self._table[name] = row
                        differing.append(name)
            self._took_over(differing)
            is_same = is_same and not differing
            yield
        for names in batches(gone, TABLE_ROWS_PER_SLICE):
            differing = [name for name in names if self._table.pop(name, None) is not None]
            self._took_over(differing)
            is_same = is_same and not differing
            yield
        if is_same:
            return
        self.version = version
        self._file.changed()
        self.on_due()

    def _took_over(self, names: list[str]) -> None:
        """Record the rows of a copied slice as changed, although the table does not have its new version yet."""
        if names:
            self._note_changed(names)
            self.writer.changed(*names)
            self.on_due()

    def _note_changed(self, names: Iterable[str]) -> None:
        """Note that these rows have changed; their texts are formatted when the complete file is next written."""
        for name in names:
            self._rows.changed(name)
            self.changes.note(name)

    # --- writing ------------------------------------------------------------------------------
    def save(self) -> None:
        """Write the changes now; if the disk is full or broken, the next call tries again."""
        self.writer.save()

    def _changed_rows(self, names: Iterable[str]) -> bytes:
        rows: list[bytes] = []
        for name in names:
            row = self._table.get(name)
            rows.append(fastjson.dumps(name) + b":" + (b"null" if row is None else msgspec.json.encode(row)))
        field = fastjson.dumps(self.field)
        new = self.writer.new_rows
        made = b"" if not new else b',"%s":%s' % (MADE.encode(), fastjson.dumps(list(new)))
        return b'{"dataVersion":%s,%s:{%s}%s}' % (msgspec.json.encode(self.version), field, b",".join(rows), made)

    def _pieces(self) -> Iterator[bytes]:
        return self._rows.pieces(self.version, self._table)
