"""LiteIndex: where the messages of a parent topic's lite topics are in the log.

An *entry* is one message: its log offset, the number of its lite topic, and the distance to the lite topic's next
entry. Entries have consecutive numbers and are in the order of the log, so retention removes them from the front. A
lite topic has its first and last entry, the offset of its first message, and the number of its messages. Together
this is about 80 bytes for a lite topic with one message, and 16 bytes for each further message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from cometmq.broker.lite.name_table import NO_NAME, NameTable

NO_ENTRY: Final = -1
_DROPPED_AT_ONCE: Final = 100_000
"""Number of entries that are removed in one step (about 10 ms)."""
_WALKED: Final = 1_000
"""Number of messages up to which the entries of a lite topic are visited one by one."""
FAR: Final = 10_000
"""Number of messages up to which the way from one entry to another is walked (about 0.5 ms)."""


class LiteIndex:
    """The lite topics of one parent topic, by number."""

    def __init__(self, parent: str) -> None:
        self.parent: Final = parent
        self.names = NameTable()
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

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let no lite topic be removed, so that their numbers keep their meaning."""
        self.keeps += 1
        try:
            yield
        finally:
            self.keeps -= 1

    # --- lite topics ------------------------------------------------------------------------------
    def find(self, name: str) -> int:
        """Return the number of a lite topic, or ``NO_NAME``."""
        try:
            return self.names.find(name.encode())
        except UnicodeEncodeError:
            return NO_NAME

    def name(self, number: int) -> str:
        """Return the name of a lite topic."""
        return self.names.name(number).decode()

    def add(self, name: str, begin: int = 0) -> int:
        """Add a lite topic without messages; return its number.

        :param begin: the offset of its next message.
        """
        number = self.names.add(name.encode())
        self.unsaved += 1
        if number == len(self._counts):
            self._firsts.append(NO_ENTRY)
            self._lasts.append(NO_ENTRY)
            self._begins.append(begin)
            self._counts.append(0)
        else:
            self._begins[number] = begin
        return number

    def remove(self, number: int) -> Callable[[], int]:
        """Remove a lite topic; its entries remain until retention removes them, but belong to nobody.

        :return: the function that puts the lite topic back, and returns its number.
        """
        name, first, last = self.names.name(number), self._firsts[number], self._lasts[number]
        back = partial(self._put_back, name, first, last, self._begins[number], self._counts[number])
        self.restart(number, 0)
        self.names.remove(number)
        return back

    def _put_back(self, name: bytes, first: int, last: int, begin: int, count: int) -> int:
        number = self.names.find(name)
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

    def append(self, number: int, log_offset: int) -> int:
        """Add a message to a lite topic; return the lite topic's last entry before, for :meth:`take_back`."""
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
        self.unsaved += 1
        return before

    def take_back(self, before: int) -> None:
        """Remove the last entry.

        :param before: what :meth:`append` returned.
        """
        number = self._owners.pop()
        self._logs.pop()
        self._steps.pop()
        self._lasts[number] = before
        self._counts[number] -= 1
        if before == NO_ENTRY:
            self._firsts[number] = NO_ENTRY
        else:
            self._steps[before - self.base] = 0

    def log_offset(self, entry: int) -> int:
        """Return the log offset of an entry."""
        return self._logs[entry - self.base]

    def owner(self, entry: int) -> int:
        """Return the lite topic of an entry, or ``NO_NAME`` if it was removed."""
        return self._owners[entry - self.base]

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

    def idle(self, end: int) -> Iterator[int]:
        """Return the lite topics whose last entry is before ``end``, or that have no message; a list of millions would
        take too long.
        """
        lasts = np.frombuffer(self._lasts, np.int64)
        lengths = np.frombuffer(self.names._lengths, np.uint8)
        return map(int, np.flatnonzero((lasts < end) & (lengths > 0)))

    def ends(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the offset after the last message of each lite topic, by number."""
        return np.frombuffer(self._begins, np.int64) + np.frombuffer(self._counts, np.int32)

    # --- snapshots --------------------------------------------------------------------------------
    def dump_entries(self, first: int, end: int) -> tuple[bytes, bytes]:
        """Return the log offsets and the lite topics of entries."""
        part = slice(first - self.base, end - self.base)
        return self._logs[part].tobytes(), self._owners[part].tobytes()

    def dump_begins(self, first: int, end: int) -> bytes:
        """Return the offsets of the first messages of lite topics."""
        return self._begins[first:end].tobytes()

    def load(self, names: tuple[bytes, bytes, bytes], begins: bytes, logs: bytes, owners: bytes) -> Iterator[None]:
        """Load a snapshot into this empty index, in slices.

        :raises ValueError: the parts do not belong together.
        """
        yield from self.names.load(*names)
        size = self.names.size
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
        yield
        self._steps.frombytes(steps.tobytes())
        self._firsts.frombytes(firsts.tobytes())
        self._lasts.frombytes(lasts.tobytes())
        self._counts.frombytes(counts.tobytes())
