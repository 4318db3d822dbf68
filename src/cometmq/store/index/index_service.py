"""IndexService: manages the index files, and writes pending entries to them in blocks.

A query first writes the pending entries, so that it finds every committed message. A message with thousands of keys is
indexed over several rounds of the event loop, so queries may find it some milliseconds later.
"""

from __future__ import annotations

import datetime
import itertools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cometmq.clock import Clock
from cometmq.limits import INDEX_BLOCK_KEYS, MAX_QUERY_LOOKS, MAX_QUERY_MESSAGES
from cometmq.message.ids import index_hash, java_hash
from cometmq.store.disk import Disk
from cometmq.store.index.index_file import IndexFile, Keys
from cometmq.store.index.key_hashes import key_hashes
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import LogRecord, record_at

INDEX_BLOCK_MESSAGES: Final = 512
"""Number of messages whose entries are written together. This is enough to vectorise the work, but takes less than a
millisecond.
"""
FEW_KEYS: Final = 16
"""A message with up to this many keys counts as one message of a block; with more keys, each key counts as one."""
_LONG: Final = struct.Struct("=q").pack


class HashedKeys(NamedTuple):
    """The hashed keys of several messages, from the compiled core."""

    keys: Keys
    messages: int


_Waiting = tuple[str, int, int, Sequence[str]] | HashedKeys
"""``(topic#, log offset, store timestamp, keys)`` of one message, or the hashed keys of several messages."""


class QueryKey(NamedTuple):
    """The key to search for."""

    topic: str
    text: str
    unique: bool = False
    """True if the text is a unique key. A message that has it only among its KEYS then does not match."""

    def is_of(self, record: LogRecord) -> bool:
        """Return whether a record has this key, not just a key with the same hash."""
        has_key = record.unique_key == self.text if self.unique else self.text in record.keys
        return has_key and record.topic == self.topic


class QueryResult(NamedTuple):
    """Matching records in log order, and the store timestamp and log offset of the last indexed message. Both are 0 if
    the index is empty.
    """

    last_update_timestamp: int
    last_update_physical_offset: int
    records: list[memoryview]


class IndexService:
    """All index files of a store, oldest first."""

    def __init__(self, directory: Path, slots: int, entries: int, disk: Disk, clock: Clock) -> None:
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self.files: list[IndexFile] = []
        self.pending: list[_Waiting] = []
        """The pending keys, in log order."""
        self.committed = 0
        """Number of committed items in ``pending``.

        The items after them are discarded if their batch cannot be committed.
        """
        self.hashed_messages = 0
        """Number of messages in :class:`HashedKeys` items, not counting the first message of each item."""
        self.many_keys = 0
        """Total number of keys in messages that have more than :data:`FEW_KEYS` keys."""
        self.disk = disk
        self._clock = clock

    def commit(self) -> None:
        """Mark all pending items as committed."""
        self.committed = len(self.pending)

    def undo_batch(self) -> None:
        """Discard the items added since the last commit."""
        self.undo_to(self.committed)

    def undo_to(self, count: int) -> None:
        """Discard all items except the first ``count``."""
        self._forgotten(self.pending[count:])
        del self.pending[count:]

    def add_hashed(self, hashes: bytes, offsets: bytes, timestamp: int, messages: int) -> None:
        """Add the hashed keys of a batch of messages: an int32 of ``hashes`` and an int64 of ``offsets`` for each key.

        Both are in the byte order of the machine.
        """
        self.add_keys(Keys(hashes, offsets, _LONG(timestamp) * (len(hashes) // 4)), messages)

    def add_keys(self, keys: Keys, messages: int) -> None:
        """Add the hashed keys of several messages."""
        self.pending.append(HashedKeys(keys, messages))
        self.hashed_messages += messages - 1

    def _forgotten(self, items: Sequence[_Waiting]) -> None:
        if self.many_keys:
            self.many_keys -= _many(items)
        if self.hashed_messages:
            self.hashed_messages -= sum(item.messages - 1 for item in items if isinstance(item, HashedKeys))

    def write_pending(self) -> None:
        """Write the entries of all committed messages.

        :raises OSError: the disk is full; entries that were not written remain pending.
        """
        while self.committed:
            self.write_block()

    def write_block(self) -> None:
        """Write the index entries of the first committed messages, or of all of them if no message has many keys.

        :raises OSError: see :meth:`write_pending`.
        """
        block = self.pending[: self._block_messages()]
        if not block:
            return
        keys = _keys(block)
        done = 0
        try:
            while done < keys.size:
                done += self._writable_file().append(keys, done)
        except OSError:
            self._keep_unwritten(block, done)
            raise
        self._forgotten(block)
        del self.pending[: len(block)]
        self.committed -= len(block)

    def _block_messages(self) -> int:
        if self.many_keys <= INDEX_BLOCK_KEYS:
            return self.committed
        keys = 0
        for number, item in enumerate(self.pending[: self.committed]):
            if keys >= INDEX_BLOCK_KEYS:
                return number
            keys += _count(item)
        return self.committed

    def _keep_unwritten(self, block: Sequence[_Waiting], done: int) -> None:
        """After a failed write, keep only the items and keys that were not written."""
        lengths = np.fromiter(map(_count, block), np.int64, len(block))
        whole = int(np.searchsorted(np.cumsum(lengths), done, side="right"))
        rest = done - int(lengths[:whole].sum())
        self._forgotten(block[:whole])
        if rest:
            item = block[whole]
            self._forgotten((item,))
            if isinstance(item, HashedKeys):
                left: _Waiting = item._replace(keys=item.keys.part(rest, item.keys.size))
                self.hashed_messages += item.messages - 1
            else:
                left = (*item[:3], item[3][rest:])
                self.many_keys += _many((left,))
            self.pending[whole] = left
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

    def query(
        self, log: CommitLog, key: QueryKey, max_num: int, begin: int, end: int, *, readable_end: int
    ) -> QueryResult:
        """Return the newest ``max_num`` records with ``key`` and a store timestamp between ``begin`` and ``end`` (ms)
        that end at or before the log offset ``readable_end``.

        The index contains only times in seconds and hashes, which other topics and keys may share. So each record is
        read, and it matches only if it has the key and its timestamp is in the range.
        """
        key_hash = index_hash(java_hash(f"{key.topic}#{key.text}"))
        most = min(max_num, MAX_QUERY_MESSAGES)
        found: dict[int, memoryview] = {}
        candidates = itertools.chain.from_iterable(
            file.find(key_hash, begin, end) for file in reversed(self.files) if file.covers(begin, end)
        )
        looks = MAX_QUERY_LOOKS
        for offset in candidates if most > 0 else ():
            record = record_at(log, offset)
            if record is not None:
                looks -= 1 + len(record.keys)
                is_readable = offset + record.size <= readable_end
                is_wanted = is_readable and key.is_of(record) and begin <= record.store_timestamp <= end
                view = log.record(offset) if is_wanted else None
                if view is not None:
                    found[offset] = view
            if len(found) >= most or looks <= 0:
                break
        if not found:
            return QueryResult(0, 0, [])
        last = self.files[-1]
        return QueryResult(
            last.end_timestamp, min(last.end_offset, readable_end), [view for _, view in sorted(found.items())]
        )

    def remove_files_below(self, log_min: int) -> int:
        """Delete the files whose messages are all below ``log_min``, but never the last file. Return the number of
        deleted files.
        """
        removed = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_min:
            self.files.pop(0).remove()
            removed += 1
        return removed

    def dirty_files(self) -> list[IndexFile]:
        """Return the index files that were written since the last call."""
        dirty = [file for file in self.files if file.dirty]
        for file in dirty:
            file.dirty = False
        return dirty

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()


def _many(waiting: Sequence[_Waiting]) -> int:
    return sum(len(item[3]) for item in waiting if not isinstance(item, HashedKeys) and len(item[3]) > FEW_KEYS)


def _count(item: _Waiting) -> int:
    """Return the number of keys in an item."""
    return item.keys.size if isinstance(item, HashedKeys) else len(item[3])


def _keys(block: Sequence[_Waiting]) -> Keys:
    """Return the keys of all items of a block, in the same order."""
    parts: list[Keys] = []
    for kind, group in itertools.groupby(block, type):
        items: list[Any] = list(group)
        parts += [item.keys for item in items] if kind is HashedKeys else [_hashed(items)]
    return parts[0] if len(parts) == 1 else Keys(*map(b"".join, zip(*parts, strict=True)))


def _hashed(block: Sequence[tuple[str, int, int, Sequence[str]]]) -> Keys:
    texts = [prefix + key for prefix, _, _, keys in block for key in keys]
    return Keys(
        key_hashes(texts).tobytes(),
        b"".join([_LONG(at) * len(keys) for _, at, _, keys in block]),
        b"".join([_LONG(timestamp) * len(keys) for _, _, timestamp, keys in block]),
    )


def is_index_name(name: str) -> bool:
    """Return whether a name is a valid index file name, which is a time in 17 digits."""
    return len(name) == 17 and name.isascii() and name.isdigit() and os.sep not in name
