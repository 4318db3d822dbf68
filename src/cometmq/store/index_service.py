"""IndexService: the index files, and the entries that wait to be written in one block.

Queries first write what waits, so that they see every message that was committed; messages with thousands of keys
are written over several turns of the loop, and may be found some milliseconds later.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cometmq.clock import Clock
from cometmq.limits import INDEX_BLOCK_KEYS
from cometmq.message.ids import index_hash, java_hash, key_hashes
from cometmq.store.disk import Disk
from cometmq.store.index_file import IndexFile

INDEX_BLOCK_MESSAGES: Final = 512
"""Messages whose entries are written together: large enough to vectorise, under a millisecond of work."""
FEW_KEYS: Final = 16
"""Messages with more keys are counted by keys."""


class IndexHits(NamedTuple):
    """Where the messages of a key stand, and how far the index reaches."""

    offsets: list[int]
    last_update_timestamp: int
    last_update_physical_offset: int


class IndexService:
    """All index files of a store, oldest first."""

    def __init__(self, directory: Path, slots: int, entries: int, disk: Disk, clock: Clock) -> None:
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self.files: list[IndexFile] = []
        self.pending: list[tuple[str, int, int, Sequence[str]]] = []
        """``(topic#, log offset, store timestamp, keys)`` of each message whose entries wait, in log order."""
        self.committed = 0
        """How many of them belong to committed messages; the rest is taken back when the turn's commit fails."""
        self.many_keys = 0
        """Keys of those among them that have more than :data:`FEW_KEYS`."""
        self.disk = disk
        self._clock = clock

    def commit(self) -> None:
        """Count all that waits as committed."""
        self.committed = len(self.pending)

    def undo_turn(self) -> None:
        """Forget what was added since the last commit."""
        self.undo_to(self.committed)

    def undo_to(self, count: int) -> None:
        """Forget all but the first ``count`` messages."""
        self.many_keys -= _many(self.pending[count:])
        del self.pending[count:]

    def write_pending(self) -> None:
        """Write the entries of all committed messages.

        :raises OSError: no room on the disk; what was not written goes on waiting.
        """
        while self.committed:
            self.write_block()

    def write_block(self) -> None:
        """Write the entries of the first committed messages: of all, unless some have many keys.

        :raises OSError: as :meth:`write_pending`.
        """
        block = self.pending[: self._block_messages()]
        if not block:
            return
        texts = [prefix + key for prefix, _, _, keys in block for key in keys]
        lengths = np.fromiter((len(item[3]) for item in block), np.int64, len(block))
        offsets = np.repeat(np.fromiter((item[1] for item in block), np.int64, len(block)), lengths)
        timestamps = np.repeat(np.fromiter((item[2] for item in block), np.int64, len(block)), lengths)
        hashes = key_hashes(texts)
        done = 0
        try:
            while done < len(texts):
                file = self._writable_file()
                done += file.append(hashes[done:], offsets[done:], timestamps[done:])
        except OSError:
            self._keep_unwritten(lengths, done)
            self.many_keys = _many(self.pending)
            raise
        if self.many_keys:
            self.many_keys -= _many(block)
        del self.pending[: len(block)]
        self.committed -= len(block)

    def _block_messages(self) -> int:
        if self.many_keys <= INDEX_BLOCK_KEYS:
            return self.committed
        keys = 0
        for number, item in enumerate(self.pending[: self.committed]):
            if keys >= INDEX_BLOCK_KEYS:
                return number
            keys += len(item[3])
        return self.committed

    def _keep_unwritten(self, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], done: int) -> None:
        """After a failure: drop the messages that are written, and the written keys of the one in between."""
        whole = int(np.searchsorted(np.cumsum(lengths), done, side="right"))
        rest = done - int(lengths[:whole].sum())
        if rest:
            prefix, offset, timestamp, keys = self.pending[whole]
            self.pending[whole] = (prefix, offset, timestamp, keys[rest:])
        del self.pending[:whole]
        self.committed -= whole

    def _writable_file(self) -> IndexFile:
        if self.files and not self.files[-1].full:
            return self.files[-1]
        self.directory.mkdir(parents=True, exist_ok=True)
        now_ms = self._clock.now_ms()
        while True:
            now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
            path = self.directory / f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
            if not path.exists() and (not self.files or path.name > self.files[-1].path.name):
                break
            now_ms += 1
        file = IndexFile(path, self.slots, self.entries, self.disk, create=True)
        self.files.append(file)
        return file

    def find(self, topic: str, key: str, max_num: int, begin: int, end: int) -> IndexHits:
        """The log offsets of up to ``max_num`` messages, ascending, of the newest files first.

        Different keys can have one hash: whoever reads the records compares their keys.
        """
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        found: set[int] = set()
        for file in reversed(self.files):
            if len(found) >= max_num:
                break
            if file.covers(begin, end):
                file.find(key_hash, begin, end, max_num, found)
        last = self.files[-1] if self.files else None
        return IndexHits(
            sorted(found), last.end_timestamp if last is not None else 0, last.end_offset if last is not None else 0
        )

    def remove_files_below(self, log_min: int) -> int:
        """Delete the files that only know messages below ``log_min``, never the last; return how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_min:
            file = self.files.pop(0)
            file.path.unlink(missing_ok=True)
            file.close()
            removed += 1
        return removed

    def dirty_files(self) -> list[IndexFile]:
        """The files written since they were last asked for."""
        dirty = [file for file in self.files if file.dirty]
        for file in dirty:
            file.dirty = False
        return dirty

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()


def _many(waiting: Sequence[tuple[str, int, int, Sequence[str]]]) -> int:
    return sum(len(keys) for _, _, _, keys in waiting if len(keys) > FEW_KEYS)


def is_index_name(name: str) -> bool:
    """Whether a file name is one of an index file: 17 digits of a time."""
    return len(name) == 17 and name.isascii() and name.isdigit() and os.sep not in name
