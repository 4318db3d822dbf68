"""RowWriter: appends a table's changed rows to a journal, and periodically writes the complete file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from cometmq import fastjson
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.slices import batches
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.loop import call_now
from cometmq.remoting.bodies import to_builtins
from cometmq.threads import in_thread

K = TypeVar("K")


def pieces_of_map(field: str, rows: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Yield the text of a file that contains one map of rows, in fastjson's pretty format, slice by slice."""
    yield b"{\n\t%s:{" % fastjson.dumps(field)
    before = b"\n\t\t"
    for some in batches(rows, TABLE_ROWS_PER_SLICE):
        texts = (fastjson.dumps(name) + b":" + fastjson.dumps_pretty(to_builtins(row), 2) for name, row in some)
        yield before + b",\n\t\t".join(texts)
        before = b",\n\t\t"
    yield b"\n\t}\n}" if before.startswith(b",") else b"}\n}"


class RowWriter(Generic[K]):
    """Writes a table of rows with keys.

    :param changes: returns the rows for some keys as JSON to be merged into the file's; removed rows are null.
    :param pieces: yields the complete file, slice by slice; rows may change between slices.
    """

    def __init__(
        self,
        file: JournaledFile,
        changes: Callable[[Iterable[K]], bytes],
        pieces: Callable[[], Iterator[bytes]],
    ) -> None:
        self._file = file
        self._changes = changes
        self._pieces = pieces
        self._unwritten = _Changed[K]({}, set(), set())
        self._being_written = _Changed[K]({}, set(), set())

    def changed(self, *keys: K) -> None:
        """Record that rows were added, replaced or removed, or that other data in the file changed."""
        for key in keys:
            self._unwritten.keys[key] = None
        self._file.changed()

    def added(self, key: K) -> None:
        """Record that a row was added."""
        self._unwritten.added.add(key)
        if key not in self._unwritten.keys:
            self._unwritten.new.add(key)
        self.changed(key)

    def is_new(self, key: K) -> bool:
        """Return whether a row was added that has not been written yet."""
        return key in self._unwritten.added or key in self._being_written.added

    @property
    def has_new(self) -> bool:
        """True while added rows have not been written."""
        return bool(self._unwritten.added or self._being_written.added)

    @property
    def new_rows(self) -> set[K]:
        """Return the keys of rows in the current write that are not yet in the file or its journals."""
        return self._being_written.new

    def begin_write(self) -> Callable[[], object] | None:
        """Return a function that writes the changes in any thread, or ``None`` if nothing changed.

        The caller must call the function and then ``end_write``.
        """
        if not self._file.take_due():
            return None
        self._being_written, self._unwritten = self._unwritten, _Changed({}, set(), set())
        if self._file.takes_changes:
            return partial(self._file.append, [self._changes(self._being_written.keys)])
        return partial(self._file.write_text, list(self._pieces()))

    @property
    def failure(self) -> Exception | None:
        """The reason why the last write failed, or ``None``."""
        return self._file.failure

    def note_failure(self, reason: Exception) -> None:
        """Record that the current write failed."""
        self._file.note_failure(reason)

    def end_write(self) -> None:
        """Finish the current write; changes that could not be written are part of the next one."""
        changed, self._being_written = self._being_written, _Changed({}, set(), set())
        if self._file.failure is not None:
            self._unwritten = changed.with_later(self._unwritten)

    def save(self) -> None:
        """Write the changes now; if the disk is full or broken, the next call tries again."""
        write = self.begin_write()
        if write is not None:
            write()
            self.end_write()

    @property
    def seconds_to_whole(self) -> float | None:
        """Return the seconds until the complete file is due; see :attr:`JournaledFile.seconds_to_whole`."""
        return self._file.seconds_to_whole

    async def save_in_background(
        self, when_idle: Callable[[Callable[[], None]], None] = call_now, *, at_once: bool = False
    ) -> None:
        """Write the complete file in the background when it is due.

        :param when_idle: see :meth:`JournaledFile.write_in_background`.
        :param at_once: True to write an incomplete file before it is due.
        """
        if self._file.whole_is_due or (at_once and self._file.seconds_to_whole is not None):
            await self._file.write_in_background(self._pieces(), when_idle)

    async def save_in_thread(self) -> None:
        """Write the changes in a thread, and also the complete file when it is due.

        Use this only for tables with immutable rows that are saved by no other method.
        """
        is_whole = self._file.whole_is_due
        if self._file.takes_changes:
            write = self.begin_write()
            if write is not None:
                await in_thread(write)
                self.end_write()
        elif self._file.take_due():
            is_whole = True
        if is_whole:
            self._being_written, self._unwritten = self._unwritten, _Changed({}, set(), set())
            await in_thread(self._file.write_text, self._pieces())
            self.end_write()

    def save_last(self) -> None:
        """Write the complete file if the table has changed since the last one; called when the broker stops."""
        self._file.write_last(self._pieces())


class _Changed(NamedTuple, Generic[K]):
    """The keys of rows that changed since the previous write."""

    keys: dict[K, None]
    added: set[K]
    """Rows that were added since the previous write, possibly after a removal."""
    new: set[K]
    """Rows that were added since the previous write and did not exist then."""

    def with_later(self, later: _Changed[K]) -> _Changed[K]:
        """Return these changes combined with later ones."""
        return _Changed(self.keys | later.keys, self.added | later.added, self.new | (later.new - self.keys.keys()))
