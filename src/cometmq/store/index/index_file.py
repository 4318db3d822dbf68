"""IndexFile: one file of the index of messages by key (``IndexFile``, ``IndexHeader``).

Layout: a header of 40 bytes (``int64 first and last store timestamp, int64 first and last log offset, int32 slots used,
int32 next entry``), ``slots`` x int32 with the number of the newest entry of each chain (0 = none), and entries of 20
bytes, numbered from 1: ``int32 key hash, int64 log offset, int32 seconds since the first timestamp, int32 previous
entry of the chain``.

Entries are written in blocks: first the entries, then the slots that point to them, then the header, so that the worst
result of a killed process is slots that point past the header's count. :meth:`IndexFile.truncate_entries` repairs such
slots.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.core import CORE
from cometmq.message.layout import INDEX_ENTRY, INDEX_HEADER
from cometmq.message.record_arrays import dtype_of
from cometmq.store.disk import Disk, delete_large_file

HEADER: Final = INDEX_HEADER.struct()
HEADER_BYTES: Final = INDEX_HEADER.size
ENTRY_BYTES: Final = INDEX_ENTRY.size
ENTRY: Final = dtype_of(INDEX_ENTRY)
_ENTRY_STRUCT: Final = INDEX_ENTRY.struct()
_SLOT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct("=q")
_ALLOCATE_BYTES: Final = 4 << 20
"""Disk space for entries is allocated in steps of this many bytes, so that a new index does not occupy 400 MB."""
_CHAIN_STEPS: Final = 4_096
"""Maximum number of entries that are read one by one along a chain, which takes about 2 ms."""
_BLOCK_ENTRIES: Final = 1 << 18
"""Number of entries per block when the file is scanned because a chain is too long. A block takes about 1 ms and 5 MB.
"""
_INT_MAX: Final = 0x7FFFFFFF
_SECOND_MS: Final = 1_000

Ints = npt.NDArray[Any]


class Keys(NamedTuple):
    """Keys to be indexed, in log order."""

    hashes: bytes
    """Key hashes as native int32."""
    offsets: bytes
    """The log offset of each key's message, as native int64."""
    timestamps: bytes
    """The store timestamp (ms) of each key's message, as native int64."""

    @property
    def size(self) -> int:
        """The number of keys."""
        return len(self.hashes) // 4

    def part(self, begin: int, end: int) -> Keys:
        """Return the keys from number ``begin`` to number ``end - 1``."""
        if begin == 0 and end == self.size:
            return self
        eight = slice(8 * begin, 8 * end)
        return Keys(self.hashes[4 * begin : 4 * end], self.offsets[eight], self.timestamps[eight])


Block = tuple[bytes, Callable[[memoryview], None], int]
"""New entries, a function that links them into the slots, and the number of slots that are used for the first time."""


def index_file_bytes(slots: int, entries: int) -> int:
    """Return the length of an index file."""
    return HEADER_BYTES + slots * 4 + entries * ENTRY_BYTES


class IndexFile:
    """An index file that is completely mapped into memory."""

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk, *, create: bool = False) -> None:
        """Open or create a file with ``slots`` slots and space for ``entries - 1`` entries.

        :raises OSError: the disk has no space to create it.
        """
        self.path = path
        self.slots = slots
        self.entries = entries
        self.dirty = False
        self._disk = disk
        self._entries_at = HEADER_BYTES + slots * 4
        self._size = index_file_bytes(slots, entries)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        self.fd = os.open(path, flags, 0o644)
        try:
            if create:
                os.ftruncate(self.fd, self._size)
                disk.write(self.fd, HEADER.pack(0, 0, 0, 0, 0, 1), 0)
            self._map = mmap.mmap(self.fd, self._size)
        except BaseException:
            os.close(self.fd)
            if create:
                path.unlink(missing_ok=True)
            raise
        self._table = memoryview(self._map)[HEADER_BYTES : self._entries_at]
        self._allocated = 0
        """Number of bytes whose disk space is known to be allocated."""
        self.begin_timestamp: int
        self.end_timestamp: int
        self.begin_offset: int
        self.end_offset: int
        self.slots_used: int
        self.count: int
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        ) = HEADER.unpack_from(self._map)

    @property
    def full(self) -> bool:
        """True if the file has no space for another entry."""
        return self.count >= self.entries

    # --- writing ------------------------------------------------------------------------------
    def append(self, keys: Keys, begin: int = 0) -> int:
        """Add entries for as many keys as fit, starting with key number ``begin``, and return the number of added
        entries.

        :raises OSError: the disk is full; nothing was added.
        """
        size = min(keys.size - begin, self.entries - self.count)
        if size <= 0:
            return 0
        added = keys.part(begin, begin + size)
        first_offset, first_timestamp = _LONG.unpack_from(added.offsets)[0], _LONG.unpack_from(added.timestamps)[0]
        self._reserve(self._entries_at + (self.count + size) * ENTRY_BYTES)
        begin_timestamp = self.begin_timestamp if self.count > 1 else first_timestamp
        entries, link, opened = make_block(added, self._table, self.count, begin_timestamp)
        self._disk.write(self.fd, entries, self._entries_at + self.count * ENTRY_BYTES)
        link(self._table)
        if self.count <= 1:
            self.begin_timestamp = begin_timestamp
            self.begin_offset = first_offset
        self.end_timestamp = _LONG.unpack_from(added.timestamps, 8 * (size - 1))[0]
        self.end_offset = _LONG.unpack_from(added.offsets, 8 * (size - 1))[0]
        self.slots_used += opened
        self.count += size
        self._write_header()
        return size

    def _reserve(self, end: int) -> None:
        if end > self._allocated:
            target = min(self._size, -(-end // _ALLOCATE_BYTES) * _ALLOCATE_BYTES)
            self._disk.allocate(self.fd, self._allocated, target - self._allocated)
            self._allocated = target

    def _write_header(self) -> None:
        self.dirty = True
        HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        )

    # --- reading ------------------------------------------------------------------------------
    def covers(self, begin: int, end: int) -> bool:
        """Return whether the file may have entries in a time range (ms)."""
        return self.count > 1 and self.begin_timestamp <= end and self.end_timestamp >= begin

    def find(self, key_hash: int, begin: int, end: int) -> Iterator[int]:
        """Yield the log offsets of records with this key hash and a store timestamp from ``begin`` to ``end`` (ms),
        newest first.

        Entries have a resolution of one second, so the first and the last second are included completely. A very long
        chain (the same key in every message, or keys chosen to collide) is not followed to its end. Instead the rest of
        the file is scanned in blocks, which takes a hundredth of the time.
        """
        entry = _SLOT.unpack_from(self._map, HEADER_BYTES + key_hash % self.slots * 4)[0]
        below = self.count
        begin = max(begin, 0) - _SECOND_MS + 1
        for _ in range(_CHAIN_STEPS):
            if not 0 < entry < below:
                return
            below = entry
            stored_hash, offset, seconds, entry = _ENTRY_STRUCT.unpack_from(
                self._map, self._entries_at + entry * ENTRY_BYTES
            )
            if stored_hash == key_hash and begin <= self.begin_timestamp + seconds * 1000 <= end:
                yield offset
        if 0 < entry < below:
            yield from self._find_in_blocks(key_hash, begin, end, entry + 1)

    def _find_in_blocks(self, key_hash: int, begin: int, end: int, below: int) -> Iterator[int]:
        """Like :meth:`find`, but scan all entries with numbers below ``below``."""
        while below > 1:
            first = max(1, below - _BLOCK_ENTRIES)
            block = np.frombuffer(self._map, ENTRY, below - first, self._entries_at + first * ENTRY_BYTES)
            times = self.begin_timestamp + block["seconds"].astype(np.int64) * 1000
            hits = np.flatnonzero((block["hash"] == key_hash) & (times >= begin) & (times <= end))
            yield from block["offset"][hits[::-1]].tolist()
            below = first

    # --- recovery -----------------------------------------------------------------------------
    def _entries(self) -> Ints:
        return np.frombuffer(self._map, ENTRY, self.count - 1, self._entries_at + ENTRY_BYTES)

    def sound(self, log_end: int) -> bool:
        """Return whether the header and the entries are consistent with each other and with a log that ends at
        ``log_end``."""
        if not 1 <= self.count <= self.entries:
            return False
        if self.count == 1:
            return True
        entries = self._entries()
        offsets = entries["offset"].astype(np.int64)
        previous = entries["previous"].astype(np.int64)
        return bool(
            offsets[0] == self.begin_offset
            and offsets[-1] == self.end_offset
            and self.end_offset < log_end
            and (offsets[1:] >= offsets[:-1]).all()
            and (previous < np.arange(1, self.count)).all()
            and (previous >= 0).all()
            and (entries["hash"] >= 0).all()
        )

    def offsets(self) -> Ints:
        """Return the log offsets of all entries in ascending order."""
        return self._entries()["offset"].astype(np.int64)

    def timestamp(self, entry: int) -> int:
        """Return the store timestamp (ms) of an entry, rounded to seconds, or 0 if the entry does not exist."""
        if not 0 < entry < self.count:
            return 0
        return self.begin_timestamp + int(self._entries()["seconds"][entry - 1]) * 1000

    def agrees(self, count: int, end_offset: int) -> bool:
        """Return whether the first ``count - 1`` entries exist and the last one has the log offset ``end_offset``."""
        if not 1 <= count <= min(self.count, self.entries):
            return False
        if count == 1:
            return True
        entry = _ENTRY_STRUCT.unpack_from(self._map, self._entries_at + (count - 1) * ENTRY_BYTES)
        first = _ENTRY_STRUCT.unpack_from(self._map, self._entries_at + ENTRY_BYTES)
        return bool(entry[1] == end_offset and first[1] == self.begin_offset and 0 <= entry[3] < count)

    def slots_agree(self) -> bool:
        """Return whether no slot points past the last entry."""
        table = np.frombuffer(self._table, ">i4")
        return bool(table.max() < self.count and table.min() >= 0)

    def truncate_entries(self, count: int, end_timestamp: int) -> None:
        """Remove the entries from number ``count`` on, and clear the slots that point to them."""
        table = np.frombuffer(self._table, ">i4")
        entries = np.frombuffer(self._map, ENTRY, self.entries, self._entries_at)
        stale = np.flatnonzero((table >= count) | (table < 0))
        heads = table[stale].astype(np.int64)
        while True:
            behind = heads >= count
            if not behind.any():
                break
            known = behind & (heads < self.entries)
            following = np.zeros_like(heads)
            following[known] = entries["previous"][heads[known]].astype(np.int64)
            heads = np.where(behind, np.where(following < heads, following, 0), heads)
        table[stale] = np.maximum(heads, 0)
        self.count = count
        if count > 1:
            self.end_offset = int(entries["offset"][count - 1])
            self.end_timestamp = end_timestamp
        else:
            self.begin_timestamp = self.end_timestamp = self.begin_offset = self.end_offset = 0
        self.slots_used = int(np.count_nonzero(table))
        self._write_header()

    def flush(self) -> None:
        """Flush the file so that it survives a power failure (called in a thread).

        :raises OSError: the file could not be flushed.
        """
        if self.fd >= 0:  # otherwise retention has deleted it in the meantime
            self._disk.flush(self.fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        delete_large_file(self.path, self._map)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def make_block_in_python(keys: Keys, table: memoryview, count: int, begin_timestamp: int) -> Block:
    """Build the index entries for keys, given a file's slots, next entry and first store timestamp (ms)."""
    hashes = np.frombuffer(keys.hashes, np.int32)
    slots = np.frombuffer(table, ">i4")
    numbers = np.arange(count, count + keys.size, dtype=np.int64)
    own_slots = hashes.astype(np.int64) % len(slots)
    order = np.argsort(own_slots, kind="stable")
    sorted_slots = own_slots[order]
    opens = np.empty(keys.size, np.bool_)
    opens[0] = True
    np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=opens[1:])
    closes = np.empty(keys.size, np.bool_)
    closes[-1] = True
    closes[:-1] = opens[1:]
    before = slots[sorted_slots[opens]].astype(np.int64)
    before[(before < 0) | (before >= count)] = 0
    chained = np.empty(keys.size, np.int64)
    chained[1:] = numbers[order[:-1]]
    chained[opens] = before
    previous = np.empty(keys.size, np.int64)
    previous[order] = chained
    block = np.empty(keys.size, ENTRY)
    block["hash"] = hashes
    block["offset"] = np.frombuffer(keys.offsets, np.int64)
    seconds = (np.frombuffer(keys.timestamps, np.int64) - begin_timestamp) // 1000
    block["seconds"] = np.clip(seconds, 0, _INT_MAX)
    block["previous"] = previous

    def link(table: memoryview) -> None:
        np.frombuffer(table, ">i4")[sorted_slots[closes]] = numbers[order[closes]]

    return block.tobytes(), link, int(np.count_nonzero(before == 0))


def make_block_in_core(keys: Keys, table: memoryview, count: int, begin_timestamp: int) -> Block:
    """Build the same entries as :func:`make_block_in_python`, but with the compiled core."""
    entries, heads, opened = CORE.index_block(keys, table, count, begin_timestamp)
    return entries, heads.write, opened


make_block: Final = make_block_in_python if CORE is None else make_block_in_core
