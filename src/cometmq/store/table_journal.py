"""TableJournal: stores the changes to a table since its complete file was last written.

Theory of operation. The broker's tables are JSON files in ``config/``, like those of Apache's broker. Writing the
complete file for each change gets slower as the table grows. So changes are appended to a journal and flushed, and the
complete file is written from time to time. The table in ``config/NAME.json`` has these files in ``comet/tables/``:

* ``NAME.N.journal``: one record per line: the CRC32 of a text (8 hexadecimal digits), a space, and the text, which is a
  JSON array of objects. The objects are merged into the file's object one after the other (:func:`merge`). Each append
  is one record. A process never appends to a journal of an earlier process.
* ``NAME.bases``: the files that the journals continue, as a JSON array of ``[CRC32, bytes, number]``. The changes since
  such a file are in the journals with that number and above.

Before the complete file is written, a new journal is started. Before the new file replaces the old one, ``NAME.bases``
names both. The older journals are deleted afterwards.

Invariants.

* Whichever file exists, the journals that ``NAME.bases`` names for it contain every later change.
* A record contains complete rows, so applying it to a file that already includes its changes has no effect.

Fault model. A crash at any moment leaves either the old or the new file, and both are named. The last record of a
journal may be torn, but its change was never acknowledged. Any other invalid record is damage. A failed write is
repeated at the same position. After a failed flush, the next append starts another journal, since it is unknown what a
second flush of the same file would cover. If another program wrote the file (Apache's broker, an older version, a
person), ``NAME.bases`` does not name that file, and its rows take precedence. But the program did not know the rows
created after the file that it had read. Records list such rows under ``made``, and those missing from its file are
added.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.checksum import crc32
from cometmq.durable import make_directory, unless_written
from cometmq.store.disk import Disk, open_file

TABLE_DEPTH: Final = 2
"""Depth of a table whose file is one JSON object of rows."""
MADE: Final = "made"
"""Field of a change that lists the rows it created."""
_CRC_CHARS: Final = 8


class Base(NamedTuple):
    """A complete table file that journals continue."""

    crc: int
    size: int
    first: int
    """Number of the first journal that contains changes made after this file was written."""


def merge(table: dict[str, Any], changes: dict[str, Any], depth: int) -> None:
    """Merge changes into a table: ``None`` removes an entry, any other value replaces it.

    :param depth: the number of levels of nested objects that are merged; deeper objects are replaced.
    """
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        elif depth > 1 and isinstance(value, dict):
            inner = table.get(key)
            if not isinstance(inner, dict):
                inner = table[key] = {}
            merge(inner, value, depth - 1)
        else:
            table[key] = value


def made_rows(changes: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by field, the rows that these changes created and that still exist."""
    first_made: dict[tuple[str, str], bool] = {}
    table: dict[str, Any] = {}
    for change in changes:
        names = frozenset(change.get(MADE, ()))
        for field, rows in change.items():
            if isinstance(rows, dict):
                for name in rows:
                    first_made.setdefault((field, name), name in names)
        merge(table, change, TABLE_DEPTH)
    made: dict[str, dict[str, Any]] = {}
    for (field, name), is_made in first_made.items():
        if is_made and name in table[field]:
            made.setdefault(field, {})[name] = table[field][name]
    return made


class TableJournal:
    """The journals of one table.

    ``name_base``, ``note_replacement`` and ``forget_before`` may run in a different thread from the other methods, but
    only once ``NAME.bases`` contains a file.

    :param path: the table's file, ``config/NAME.json``.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._directory = path.parent.parent / "comet" / "tables"
        self._bases_path = self._directory / f"{path.stem}.bases"
        self._disk = disk
        self._bases: list[Base] = []
        self._base: tuple[int, int] | None = None
        """CRC and length of the table file."""
        self._replaced_by: set[tuple[int, int]] = set()
        """CRC and length of the files that have replaced the table file. A power failure may undo the replacements."""
        self._last = 0
        """Number of the most recently started journal."""
        self._fd: int | None = None
        self._end = 0
        self.size_bytes = 0
        """Number of bytes in the journals since the complete file was last written."""
        self.takes_changes = False
        """True if there is a complete file that a journal can continue."""
        self.is_damaged = False
        """True if ``load`` could not read everything."""
        self.is_foreign = False
        """True if ``load`` found journals that do not belong to the file."""
        self.added: list[str] = []
        """Rows that ``merge_into`` added from foreign journals."""

    # --- reading ------------------------------------------------------------------------------
    @property
    def paths(self) -> list[Path]:
        """All journals in order."""
        return [self._path_of(number) for number in self._numbers()]

    def merge_into(self, table: dict[str, Any], text: bytes | None, depth: int) -> None:
        """Merge the changes made since the table's file was written into the table. Sets ``is_damaged``, ``is_foreign``
        and ``added``.

        :param table: the file's JSON.
        :param text: the content of the file, or ``None`` if it is missing or damaged. All journals are merged then.
        :param depth: see :func:`merge`.
        """
        changes = self.load(text)
        self.added = []
        if not self.is_foreign:
            for change in changes:
                change.pop(MADE, None)
                merge(table, change, depth)
            return
        for field, made in made_rows(changes).items():
            rows = table.get(field)
            if isinstance(rows, dict):
                missing = {name: row for name, row in made.items() if name not in rows}
                rows |= missing
                self.added += missing

    def load(self, text: bytes | None) -> list[dict[str, Any]]:
        """Return the changes in the journals in order: those made since the file was written, or all changes if the
        journals belong to another file.

        :param text: see :meth:`merge_into`.
        """
        numbers = self._numbers()
        bases = self._read_bases()
        # A base may name a journal that is still empty: earlier numbers are not read.
        self._last = max([*numbers, *(base.first - 1 for base in bases or ())], default=0)
        self.is_damaged = bases is None or (bool(numbers) and not bases)
        self._bases = bases or []
        self._base, self.takes_changes, self.is_foreign, self.size_bytes = None, False, False, 0
        first = 0
        if text is not None:
            self._base = (crc32(text), len(text))
            firsts = [base.first for base in self._bases if base[:2] == self._base]
            self.is_foreign = bool(numbers) and not firsts and not self.is_damaged
            self.takes_changes = not self.is_damaged
            if not firsts:
                self._bases = []
            first = min(firsts, default=0)
        changes: list[dict[str, Any]] = []
        for number in numbers:
            if number >= first:
                changes += self._read(self._path_of(number))
        if self.is_foreign:
            self.is_damaged, self.takes_changes, self.size_bytes = False, True, 0
        return changes

    def _numbers(self) -> list[int]:
        pattern = re.compile(re.escape(self._path.stem) + r"\.([1-9][0-9]{0,17})\.journal")
        try:
            names = [path.name for path in self._directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found is not None)

    def _path_of(self, number: int) -> Path:
        return self._directory / f"{self._path.stem}.{number}.journal"

    def _read_bases(self) -> list[Base] | None:
        """Return the files in ``NAME.bases``, or ``None`` if it cannot be read."""
        try:
            return msgspec.json.decode(self._bases_path.read_bytes(), type=list[Base])
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _read(self, path: Path) -> list[dict[str, Any]]:
        try:
            data = path.read_bytes()
        except OSError:
            self.is_damaged = self.is_damaged or path.exists()
            return []
        self.size_bytes += len(data)
        *lines, _torn = data.split(b"\n")
        changes: list[dict[str, Any]] = []
        for number, line in enumerate(lines):
            record = _record(line)
            if record is not None:
                changes += record
            elif number < len(lines) - 1:
                self.is_damaged, self.takes_changes = True, False
        return changes

    # --- appending ----------------------------------------------------------------------------
    def append(self, changes: Iterable[bytes]) -> None:
        """Append changes, each a JSON object, and flush them.

        :raises OSError: the changes may not be on disk; the next append will overwrite them.
        """
        if not self.takes_changes:
            raise OSError(errno.EIO, "the journal accepts no more changes")
        text = b"[%s]" % b",".join(changes)
        line = b"%08x %s\n" % (crc32(text), text)
        if self._fd is None:
            self._fd = self._begin_file()
        try:
            self._disk.write(self._fd, line, self._end)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        try:
            self._disk.flush(self._fd)
        except OSError:
            self.close()
            raise
        self._end += len(line)
        self.size_bytes += len(line)

    def _begin_file(self) -> int:
        make_directory(self._directory)
        if not self._bases:
            assert self._base is not None
            self._write_bases([Base(*self._base, self._last + 1)])
        self._last += 1
        self._end = 0
        fd = os.open(self._path_of(self._last), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._flush_directory(self._directory)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _flush_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._disk.flush(fd)
        finally:
            os.close(fd)

    # --- whole files --------------------------------------------------------------------------
    def begin(self) -> int:
        """Start a new journal for later changes, because the complete file is about to be written. Return the journal's
        number.
        """
        self.close()
        self.size_bytes = 0
        self._last = max((self._last, *self._numbers()))
        return self._last + 1

    def name_base(self, base: Base) -> None:
        """Add to ``NAME.bases`` a file that will soon replace the table's current file.

        :raises OSError: ``NAME.bases`` cannot be written.
        """
        make_directory(self._directory)
        present = {self._base, *self._replaced_by}
        self._write_bases([*(known for known in self._bases if known[:2] in present), base])

    def _write_bases(self, bases: list[Base]) -> None:
        fresh = self._bases_path.with_suffix(".tmp")
        with unless_written(fresh), open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            self._disk.write(fd, msgspec.json.encode(bases), 0)
            self._disk.flush(fd)
        fresh.replace(self._bases_path)
        self._flush_directory(self._directory)
        self._bases = bases

    def note_replacement(self, base: Base) -> None:
        """Record that a file has replaced the table's file. A power failure may undo this, so the journals that
        continue either file are kept.
        """
        self._replaced_by.add(base[:2])

    def forget_before(self, base: Base) -> None:
        """Delete the journals that are older than the file that has permanently replaced the table's file."""
        self._base = base[:2]
        self._replaced_by.clear()
        self.takes_changes = True
        for number in self._numbers():
            if number < base.first:
                self._path_of(number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all journals because the file contains every change."""
        self.close()
        for path in (*self.paths, self._bases_path):
            path.unlink(missing_ok=True)
        self._bases = []
        self.size_bytes = 0

    def close(self) -> None:
        """Close the journal. The next append starts another one."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _record(line: bytes) -> list[dict[str, Any]] | None:
    """Return the changes in a record, or ``None`` if it is damaged."""
    text = line[_CRC_CHARS + 1 :]
    if line[: _CRC_CHARS + 1] != b"%08x " % crc32(text):
        return None
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
