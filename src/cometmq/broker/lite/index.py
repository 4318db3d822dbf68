"""LiteIndex: where the messages of a parent topic's lite topics are in the log.

An *entry* is one message: its log offset, the number of its lite topic, and the distance to the lite topic's next
entry. Entries have consecutive numbers and are in the order of the log, so retention removes them from the front. A
lite topic has its first and last entry, the offset of its first message, and the number of its messages. Together
this is about 80 bytes for a lite topic with one message, and 16 bytes for each further message.

The compiled core has the same class (``native/src/lite_index.rs``), so that it can place the messages of plain sends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from cometmq.broker.lite.name_table import NO_NAME, NameTable
from cometmq.core import CORE

NO_ENTRY: Final = -1
_DROPPED_AT_ONCE: Final = 100_000
"""Number of entries that are removed in one step (about 10 ms)."""
_WALKED: Final = 1_000
"""Number of messages up to which the entries of a lite topic are visited one by one."""
FAR: Final = 10_000
"""Number of messages up to which the way from one entry to another is walked (about 0.5 ms)."""

Removed = tuple[bytes, int, int, int, int]
"""Name, first entry, last entry, offset of the first message and number of messages of a removed lite topic."""


class LiteIndex:
    """The lite topics of one parent topic, by number."""

    def __init__(self, parent: str) -> None:
        self.parent: Final = parent
        self._names = NameTable()
        self.base = 0
        """Number of the first entry that is kept."""
        self._logs = array("q")
        self._steps = array("i")
        self._owners = array("i")
        self._firsts = array("q")
        self._lasts = array("q")
        self._begins = array("q")
        self._counts = array("i")
        self.unsaved = 0
        """Number of changes since the last snapshot."""
        self.keeps = 0
        """Number of changes that hold numbers of lite topics over several slices; none is removed meanwhile."""
        self._unstored: list[int] = []
        """For each entry whose turn is not stored yet, the last entry of its lite topic before."""

    # --- lite topics ------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """The number of lite topics."""
        return self._names.count

    @property
    def size(self) -> int:
        """The number after all numbers of lite topics that were ever used."""
        return self._names.size

    def find(self, name: str) -> int:
        """Return the number of a lite topic, or ``NO_NAME``."""
        try:
            return self._names.find(name.encode())
        except UnicodeEncodeError:
            return NO_NAME

    def find_bytes(self, name: bytes) -> int:
        """Return the number of a lite topic whose name is given in UTF-8, or ``NO_NAME``."""
        return self._names.find(name)

    def name(self, number: int) -> str:
        """Return the name of a lite topic."""
        return self._names.name(number).decode()

    def raw_name(self, number: int) -> bytes:
        """Return the name of a lite topic in UTF-8, which is empty if the number is free."""
        return self._names.name(number)

    def add(self, name: str, begin: int = 0) -> int:
        """Add a lite topic without messages; return its number.

        :param begin: the offset of its next message.
        """
        number = self._names.add(name.encode())
        self.unsaved += 1
        if number == len(self._counts):
            self._firsts.append(NO_ENTRY)
            self._lasts.append(NO_ENTRY)
            self._begins.append(begin)
            self._counts.append(0)
        else:
            self._begins[number] = begin
        return number

    def remove(self, number: int) -> Removed:
        """Remove a lite topic; its entries remain until retention removes them, but belong to nobody.

        :return: what :meth:`put_back` needs.
        """
        first, last = self._firsts[number], self._lasts[number]
        removed = (self._names.name(number), first, last, self._begins[number], self._counts[number])
        self.restart(number, 0)
        self._names.remove(number)
        return removed

    def put_back(self, removed: Removed) -> int:
        """Put back a removed lite topic; return its number."""
        name, first, last, begin, count = removed
        number = self._names.find(name)
        if number == NO_NAME:
            number = self.add(name.decode(), begin + count)
        if self._counts[number] or first < self.base:
            return number
        self._firsts[number], self._lasts[number] = first, last
        self._begins[number], self._counts[number] = begin, count
        while first != NO_ENTRY:
            self._owners[first - self.base] = number
            first = self.following(first)
        return number

    def extent(self, number: int) -> tuple[int, int]:
        """Return the offset of the first message and the offset after the last one."""
        begin = self._begins[number]
        return begin, begin + self._counts[number]

    def next_offset(self, number: int) -> int:
        """Return the offset of the next message."""
        return self._begins[number] + self._counts[number]

    def restart(self, number: int, begin: int) -> None:
        """Forget the messages of a lite topic; its next one has the offset ``begin``."""
        if self._counts[number] > _WALKED:
            owners = np.frombuffer(self._owners, np.int32)
            owners[owners == number] = NO_NAME
            del owners
        else:
            entry = self._firsts[number]
            while entry != NO_ENTRY:
                self._owners[entry - self.base] = NO_NAME
                entry = self.following(entry)
        self._firsts[number] = self._lasts[number] = NO_ENTRY
        self._counts[number] = 0
        self._begins[number] = begin
        self.unsaved += 1

    # --- entries ----------------------------------------------------------------------------------
    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self.base + len(self._logs)

    def append(self, number: int, log_offset: int) -> None:
        """Add a message to a lite topic, which :meth:`take_back` can remove until :meth:`stored`."""
        entry = self.base + len(self._logs)
        self._logs.append(log_offset)
        self._steps.append(0)
        self._owners.append(number)
        before = self._lasts[number]
        if before == NO_ENTRY:
            self._firsts[number] = entry
        else:
            self._steps[before - self.base] = entry - before
        self._lasts[number] = entry
        self._counts[number] += 1
        self._unstored.append(before)
        self.unsaved += 1

    def take_back(self) -> None:
        """Remove the last entry, which is not stored."""
        before, number = self._unstored.pop(), self._owners.pop()
        self._logs.pop()
        self._steps.pop()
        if number == NO_NAME:
            return
        self._lasts[number] = before
        self._counts[number] -= 1
        if before == NO_ENTRY:
            self._firsts[number] = NO_ENTRY
        else:
            self._steps[before - self.base] = 0

    def stored(self) -> None:
        """Note that all entries are stored."""
        self._unstored.clear()

    @property
    def unstored(self) -> int:
        """The number of entries at the end that are not stored yet."""
        return len(self._unstored)

    def log_offset(self, entry: int) -> int:
        """Return the log offset of an entry."""
        return self._logs[entry - self.base]

    def owner(self, entry: int) -> int:
        """Return the lite topic of an entry, or ``NO_NAME`` if it was removed."""
        return self._owners[entry - self.base]

    def owners(self, first: int, end: int) -> list[int]:
        """Return the lite topics of entries, as :meth:`owner`."""
        return self._owners[max(first - self.base, 0) : max(end - self.base, 0)].tolist()

    def following(self, entry: int) -> int:
        """Return the next entry of the same lite topic, or ``NO_ENTRY``."""
        step = self._steps[entry - self.base]
        return entry + step if step else NO_ENTRY

    def first(self, number: int) -> int:
        """Return the first entry of a lite topic, or ``NO_ENTRY``."""
        return self._firsts[number]

    def last(self, number: int) -> int:
        """Return the last entry of a lite topic, or ``NO_ENTRY``."""
        return self._lasts[number]

    def entry(self, number: int, offset: int, near: int = NO_ENTRY, near_offset: int = 0) -> int:
        """Return the entry of the message at an offset, or ``NO_ENTRY``.

        :param near: an entry of the lite topic, the one at ``near_offset``, from which the way may be shorter.
        """
        begin, end = self.extent(number)
        if not begin <= offset < end:
            return NO_ENTRY
        if offset == end - 1:
            return self._lasts[number]
        entry, at = self._firsts[number], begin
        if self.base <= near < self.end and begin <= near_offset <= offset and self.owner(near) == number:
            entry, at = near, near_offset
        if offset - at > FAR:
            owners = np.frombuffer(self._owners, np.int32)[entry - self.base :]
            return entry + int(np.flatnonzero(owners == number)[offset - at])
        steps, base = self._steps, self.base
        for _ in range(offset - at):
            entry += steps[entry - base]
        return entry

    def offset_at(self, number: int, entry: int) -> int:
        """Return the offset of the first message of a lite topic at an entry or after it."""
        owners = np.frombuffer(self._owners, np.int32)[: max(entry - self.base, 0)]
        return self._begins[number] + int(np.count_nonzero(owners == number))

    # --- retention --------------------------------------------------------------------------------
    def drop_before(self, log_offset: int) -> bool:
        """Remove entries before a log offset; return whether there may be more."""
        count = min(bisect_left(self._logs, log_offset), _DROPPED_AT_ONCE)
        if not count:
            return False
        owners = np.frombuffer(self._owners, np.int32, count)
        steps = np.frombuffer(self._steps, np.int32, count)
        real = np.flatnonzero(owners >= 0)
        numbers = owners[real]
        entries = self.base + real
        follow = np.where(steps[real] > 0, entries + steps[real], NO_ENTRY)
        firsts = np.frombuffer(self._firsts, np.int64)
        lasts = np.frombuffer(self._lasts, np.int64)
        begins = np.frombuffer(self._begins, np.int64)
        counts = np.frombuffer(self._counts, np.int32)
        firsts[numbers] = follow  # the last of several values for a number counts
        np.add.at(begins, numbers, 1)
        np.subtract.at(counts, numbers, 1)
        lasts[numbers[firsts[numbers] == NO_ENTRY]] = NO_ENTRY
        del owners, steps, firsts, lasts, begins, counts
        del self._logs[:count], self._steps[:count], self._owners[:count]
        self.base += count
        self.unsaved += count
        return count == _DROPPED_AT_ONCE

    def idle(self, end: int) -> bytes:
        """Return the lite topics whose last entry is before ``end``, or that have no message, as native int32."""
        lasts = np.frombuffer(self._lasts, np.int64)
        lengths = np.frombuffer(self._names._lengths, np.uint8)
        return np.flatnonzero((lasts < end) & (lengths > 0)).astype(np.int32).tobytes()

    # --- snapshots --------------------------------------------------------------------------------
    def dump_entries(self, first: int, end: int) -> tuple[bytes, bytes]:
        """Return the log offsets and the lite topics of entries."""
        part = slice(first - self.base, end - self.base)
        return self._logs[part].tobytes(), self._owners[part].tobytes()

    def dump_names(self, first: int, end: int) -> tuple[bytes, bytes, bytes]:
        """Return the padded bytes, the lengths and the starts of the names with numbers from ``first`` to ``end``."""
        return self._names.dump(first, end)

    def dump_begins(self, first: int, end: int) -> bytes:
        """Return the offsets of the first messages of lite topics."""
        return self._begins[first:end].tobytes()

    def load(self, names: tuple[bytes, bytes, bytes], begins: bytes, logs: bytes, owners: bytes) -> None:
        """Load a snapshot into this empty index.

        :raises ValueError: the parts do not belong together.
        """
        self._names.load(*names)
        size = self._names.size
        self._begins.frombytes(begins)
        self._logs.frombytes(logs)
        self._owners.frombytes(owners)
        of = np.frombuffer(owners, np.int32)
        if len(self._begins) != size or len(self._logs) != len(of) or (len(of) and not -1 <= of.max() < size):
            raise ValueError("the parts do not belong together")
        order = np.argsort(of, kind="stable")
        sorted_of = of[order]
        steps = np.zeros(len(of), np.int32)
        is_same = sorted_of[1:] == sorted_of[:-1]
        steps[order[:-1][is_same]] = (order[1:] - order[:-1])[is_same]
        firsts = np.full(size, NO_ENTRY, np.int64)
        lasts = np.full(size, NO_ENTRY, np.int64)
        real = order[sorted_of >= 0]
        lasts[of[real]] = real
        firsts[of[real[::-1]]] = real[::-1]
        counts = np.bincount(of[of >= 0], minlength=size).astype(np.int32)
        self._steps.frombytes(steps.tobytes())
        self._firsts.frombytes(firsts.tobytes())
        self._lasts.frombytes(lasts.tobytes())
        self._counts.frombytes(counts.tobytes())


def new_index(parent: str) -> LiteIndex:
    """Return an empty index, that of the compiled core if there is one."""
    return LiteIndex(parent) if CORE is None else CORE.LiteIndex(parent)


def numbers_of(index: LiteIndex) -> Iterator[int]:
    """Yield the numbers of the lite topics of an index."""
    return (number for number in range(index.size) if index.raw_name(number))


@contextmanager
def kept(index: LiteIndex) -> Iterator[None]:
    """Let no lite topic be removed, so that their numbers keep their meaning."""
    index.keeps += 1
    try:
        yield
    finally:
        index.keeps -= 1
