"""RowWriter: appends the changed rows of a table to its journal, and writes the complete file from time to time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from cometmq import fastjson
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.slices import batches
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.remoting.bodies import to_builtins
from cometmq.threads import in_thread

K = TypeVar("K")


def pieces_of_map(field: str, rows: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Yield a file with one map of bodies in fastjson's pretty form, slice by slice."""
    yield b"{\n\t%s:{" % fastjson.dumps(field)
    before = b"\n\t\t"
    for some in batches(rows, TABLE_ROWS_PER_SLICE):
        texts = (fastjson.dumps(name) + b":" + fastjson.dumps_pretty(to_builtins(row), 2) for name, row in some)
        yield before + b",\n\t\t".join(texts)
        before = b",\n\t\t"
    yield b"\n\t}\n}" if before.startswith(b",") else b"}\n}"


class RowWriter(Generic[K]):
    """Writes one table; rows have keys.

    :param changes: returns the rows for some keys as JSON that is merged into the file's; removed rows are null.
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
        self._unwritten: dict[K, None] = {}

    def changed(self, *keys: K) -> None:
        """Record that rows were added, replaced or removed, or that the data beside the rows changed."""
        for key in keys:
            self._unwritten[key] = None
        self._file.changed()

    def has_changed(self, key: K) -> bool:
        """Return whether a row changed since the last write."""
        return key in self._unwritten

    def save(self) -> None:
        """Write the changes; on a full or broken disk they stay due for the next call."""
        if not self._file.take_due():
            return
        if self._file.takes_changes:
            self._file.append([self._changes(self._unwritten)])
        else:
            self._file.write_text(self._pieces())
        if not self._file.failed:
            self._unwritten.clear()

    @property
    def seconds_to_whole(self) -> float | None:
        """Return the same as :attr:`JournaledFile.seconds_to_whole`."""
        return self._file.seconds_to_whole

    async def save_in_background(self) -> None:
        """Write the complete file when it is due, beside other work."""
        if self._file.whole_is_due:
            await self._file.write_in_background(self._pieces())

    async def save_in_thread(self) -> None:
        """Write the changes now, and the complete file in a thread when it is due.

        For tables with immutable rows that only this method saves.
        """
        is_whole = self._file.whole_is_due
        if self._file.takes_changes:
            self.save()
        elif self._file.take_due():
            is_whole = True
        if is_whole:
            unwritten, self._unwritten = self._unwritten, {}
            await in_thread(self._file.write_text, self._pieces())
            if self._file.failed:
                self._unwritten = unwritten | self._unwritten

    def save_last(self) -> None:
        """Write the complete file if the table changed since the last one; the broker stops."""
        self._file.write_last(self._pieces())
