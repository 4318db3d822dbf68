"""The file of a large table, whose changes are appended to a journal until the complete file is written.

A change is appended to the journal and flushed before its request is answered. The complete file is written soon
afterwards, or, if it is large, at the latest when the journals are twice its size. A clean stop leaves a complete file
and no journal. :class:`~cometmq.store.table_journal.TableJournal` explains the theory of operation.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from cometmq import fastjson
from cometmq.broker.limits import (
    JOURNAL_BYTES,
    TABLE_WRITE_BYTES_PER_SECOND,
    TABLE_WRITE_SECONDS,
)
from cometmq.broker.tables.table_file import TableFile, set_aside, shown_names
from cometmq.checksum import crc32
from cometmq.clock import Clock
from cometmq.durable import flush_directory, make_directory, unless_written
from cometmq.loop import call_now
from cometmq.store.disk import Disk, open_file
from cometmq.store.recovery.load import Findings
from cometmq.store.table_journal import Base, TableJournal
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PIECE_BYTES: Final = 1 << 18
"""Number of bytes that a thread writes in one call."""


class JournaledFile(TableFile):
    """A table in ``config/NAME.json``, with journals of the changes since the file was written.

    At most one of ``write_text`` and ``write_in_background`` may be in progress.

    :param depth: see :func:`~cometmq.store.table_journal.merge`.
    """

    def __init__(self, path: Path, *, depth: int, clock: Clock, disk: Disk | None = None) -> None:
        super().__init__(path)
        self._root = path.parent.parent
        self._depth = depth
        self._clock = clock
        self._disk = disk or Disk()
        self._journal = TableJournal(path, self._disk)
        self._size_bytes = 0
        self._is_unwritable = False
        """True if the last attempt to write the complete file failed."""
        self._next_at = 0.0
        """Earliest time of the next write of the complete file."""

    # --- loading ------------------------------------------------------------------------------
    def load(self, form: Callable[[Any], T]) -> T | None:
        """Load the file like :meth:`TableFile.load`, then apply its journals; if the file is unusable, load only the
        changes.
        """
        found = super().load(form)
        if found is None and self._journal.paths:
            self.findings.append(f"{self.path.parent.name}/{self.path.name} is missing; using its last changes")
            try:
                found = form(self._merged({}, None))
            except (ValueError, TypeError, LookupError):
                found = None
        if self.findings:
            self._due = True
        if self._journal.is_foreign:
            for path in self._journal.paths:
                why = f"{self.path.name} has since been written by another program, whose rows are used"
                self.findings.append(set_aside(path, why, self._root))
        if self.added:
            names = shown_names(self.added)
            self.findings.append(f"{self.path.name}: added {names}, which that program could not know yet")
        if self._journal.is_damaged:
            self.is_whole = False
            self._due = True
            self._keep_damaged()
        return found

    @property
    def added(self) -> Sequence[str]:
        """Return the names of the rows that ``load`` restored from the journals, because another program had
        overwritten the file without them.
        """
        return self._journal.added

    def _parsed(self, path: Path) -> Any:
        text = path.read_bytes()
        self._size_bytes = len(text)
        return self._merged(fastjson.loads(text), text if path == self.path else None)

    def _merged(self, loaded: Any, text: bytes | None) -> Any:
        self._journal.merge_into(loaded, text, self._depth)
        return loaded

    def _keep_damaged(self) -> None:
        found = Findings(self._root)
        for path in self._journal.paths:
            try:
                place = found.keep_part(path, 0, path.stat().st_size)
            except OSError as error:
                self.findings.append(f"{found.name(path)}: damaged, and cannot be copied: {error.strerror}")
            else:
                kept = "" if place is None else f"; a copy is {found.name(place)}"
                self.findings.append(f"{found.name(path)}: damaged, changes to {self.path.name} may be missing{kept}")

    # --- changes ------------------------------------------------------------------------------
    @property
    def takes_changes(self) -> bool:
        """Return whether changes can be appended; if not, the complete file must be written."""
        return self._journal.takes_changes

    def append(self, changes: Iterable[bytes]) -> bool:
        """Append changes as JSON objects to be merged into the file; return False if a power cut may lose them."""
        try:
            self._journal.append(changes)
            self.failure = None
            self._failures.ended(f"write changes to {self.path}")
        except OSError as error:
            self.note_failure(error)
            self._failures.failed(f"write changes to {self.path}", error)
        return not self.failed

    # --- the complete file--------------------------------------------------------------------
    @property
    def seconds_to_whole(self) -> float | None:
        """Return the seconds until the complete file is due.

        Return ``None`` if the file contains all changes, or if the next change writes the complete file anyway, because
        there is no file for a journal to continue.
        """
        size = self._journal.size_bytes
        if not size or not self.takes_changes:
            return None
        if size > max(JOURNAL_BYTES, 2 * self._size_bytes) and not self._is_unwritable:
            return 0
        return max(0, self._next_at - self._clock.monotonic())

    @property
    def whole_is_due(self) -> bool:
        """Return whether the complete file is due."""
        return self.seconds_to_whole == 0

    async def write_in_background(
        self,
        pieces: Iterator[bytes],
        when_idle: Callable[[Callable[[], None]], None] = call_now,
        before_replacing: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """Write the complete file in pieces over several rounds of the event loop; return whether it was written.

        Rows may be from different moments: the journal contains every change since the first piece.

        :param when_idle: calls a function at a moment when no thread appends to the journal.
        :param before_replacing: awaited before the file replaces the old one.
        """
        began: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            try:
                began.set_result((self._journal.size_bytes, self._journal.begin()))
            except OSError as error:
                began.set_exception(error)

        when_idle(begin)
        before, first = await began
        self._is_unwritable = True
        try:
            base = await self._write_pieces(pieces, first)
            if before_replacing is not None:
                await before_replacing()
            await in_thread(self._take_place, base)
            before = 0
            self._failures.ended(f"write {self.path}", f"write changes to {self.path}")
            return True
        except OSError as error:
            self._failures.failed(f"write {self.path}", error)
        finally:
            if before:
                self._journal.size_bytes += before
            self._pause()
        return False

    def _pause(self) -> None:
        pause = max(TABLE_WRITE_SECONDS, self._size_bytes / TABLE_WRITE_BYTES_PER_SECOND)
        self._next_at = self._clock.monotonic() + pause

    async def _write_pieces(self, pieces: Iterator[bytes], first: int) -> Base:
        with self._fresh_file() as fresh:
            batch: list[bytes] = []
            size = 0
            for piece in pieces:
                batch.append(piece)
                size += len(piece)
                if size >= _PIECE_BYTES:
                    await in_thread(fresh.write, batch)
                    batch, size = [], 0
                else:
                    await asyncio.sleep(0)
            await in_thread(fresh.write, batch)
            await in_thread(fresh.flush)
            return Base(fresh.crc, fresh.size, first)

    def write_text(self, text: bytes | Iterable[bytes]) -> None:
        """Write the complete file now; if the disk is full or broken, it becomes due again."""
        before = self._journal.size_bytes
        first = self._journal.begin()
        try:
            with self._fresh_file() as fresh:
                fresh.write([text] if isinstance(text, bytes) else text)
                fresh.flush()
            self._take_place(Base(fresh.crc, fresh.size, first))
            self.failure = None
            self._failures.ended(f"write {self.path}", f"write changes to {self.path}")
        except OSError as error:
            self._journal.size_bytes += before
            self.note_failure(error)
            self._failures.failed(f"write {self.path}", error)
        self._pause()

    def write_last(self, text: Iterable[bytes]) -> None:
        """Write the complete file if anything has changed, and remove the journals; called when the broker stops."""
        if self.take_due() or self._journal.size_bytes:
            self.write_text(text)
        if not self.failed:
            try:
                self._journal.remove()
            except OSError as error:
                _log.error("cannot remove the journals of %s: %s", self.path, error)

    @property
    def _fresh_path(self) -> Path:
        return self.path.with_name(self.path.name + ".tmp")

    @contextmanager
    def _fresh_file(self) -> Iterator[_FreshFile]:
        make_directory(self.path.parent)
        with unless_written(self._fresh_path), open_file(self._fresh_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            yield _FreshFile(fd, self._disk)

    def _take_place(self, base: Base) -> None:
        """Replace the table's file with the new one; the old file becomes the ``.bak`` file."""
        self._journal.name_base(base)
        if self.path.exists():
            backup = self.path.with_name(self.path.name + ".bak")
            backup.unlink(missing_ok=True)
            os.link(self.path, backup)
        self._fresh_path.replace(self.path)
        self._journal.note_replacement(base)
        flush_directory(self.path.parent)
        self._size_bytes = base.size
        self._journal.forget_before(base)
        self._is_unwritable = False


class _FreshFile:
    """A file that is written piece by piece while its CRC is calculated."""

    def __init__(self, fd: int, disk: Disk) -> None:
        self._fd = fd
        self._disk = disk
        self.crc = 0
        self.size = 0

    def write(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._disk.write(self._fd, piece, self.size)
            self.crc = crc32(piece, self.crc)
            self.size += len(piece)

    def flush(self) -> None:
        self._disk.flush(self._fd)
