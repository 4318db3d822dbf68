"""NameTable: the names of a parent topic's lite topics, in about 45 bytes each, with a number for each name.

The numbers of removed names are used again, for names of about the same length. The hash table has shards, so that no
addition takes long. Hashes are Python's, whose key nobody outside of this process knows.
"""

from __future__ import annotations

from array import array
from typing import Final

_SHARDS: Final = 256
_EMPTY: Final = -1
_REMOVED: Final = -2
_FIRST_SLOTS: Final = 8
_UNIT: Final = 8
"""A name occupies a multiple of this number of bytes."""
_UNITS: Final = 8
NO_NAME: Final = -1


class _Shard:
    __slots__ = ("mask", "slots", "used")

    def __init__(self) -> None:
        self.slots = array("i", [_EMPTY]) * _FIRST_SLOTS
        self.mask = _FIRST_SLOTS - 1
        self.used = 0
        """Number of slots that are not empty."""


class NameTable:
    """Names of at most 64 bytes, by number."""

    def __init__(self) -> None:
        self._shards = [_Shard() for _ in range(_SHARDS)]
        self._bytes = bytearray()
        self._starts = array("I")
        """Start of each name, in units."""
        self._lengths = bytearray()
        """Length of each name in bytes; 0 if the number is free."""
        self._free: list[list[int]] = [[] for _ in range(_UNITS + 1)]
        """Free numbers by the units of their place."""
        self.count = 0
        """Number of names."""

    @property
    def size(self) -> int:
        """The number after all that were ever used."""
        return len(self._lengths)

    def find(self, name: bytes) -> int:
        """Return the number of a name, or ``NO_NAME``."""
        key = hash(name)
        shard = self._shards[key & 255]
        slots, mask = shard.slots, shard.mask
        at = key >> 8 & mask
        while (number := slots[at]) != _EMPTY:
            if number >= 0 and self.name(number) == name:
                return number
            at = at + 1 & mask
        return NO_NAME

    def name(self, number: int) -> bytes:
        """Return a name, which is empty if the number is free."""
        start = self._starts[number] * _UNIT
        return bytes(self._bytes[start : start + self._lengths[number]])

    def add(self, name: bytes) -> int:
        """Add a name that is missing; return its number."""
        length = len(name)
        units = (length + _UNIT - 1) // _UNIT
        free = self._free[units]
        if free:
            number = free.pop()
            start = self._starts[number] * _UNIT
            self._bytes[start : start + length] = name
            self._lengths[number] = length
        else:
            number = len(self._lengths)
            self._starts.append(len(self._bytes) // _UNIT)
            self._bytes += name.ljust(units * _UNIT, b"\0")
            self._lengths.append(length)
        self._enter(name, number)
        self.count += 1
        return number

    def _enter(self, name: bytes, number: int) -> None:
        key = hash(name)
        shard = self._shards[key & 255]
        if shard.used * 3 >= len(shard.slots) * 2:
            self._grow(shard)
        slots, mask = shard.slots, shard.mask
        at = key >> 8 & mask
        while slots[at] >= 0:
            at = at + 1 & mask
        if slots[at] == _EMPTY:
            shard.used += 1
        slots[at] = number

    def _grow(self, shard: _Shard) -> None:
        numbers = [number for number in shard.slots if number >= 0]
        size = _FIRST_SLOTS
        while len(numbers) * 3 >= size:
            size *= 2
        shard.slots, shard.mask, shard.used = array("i", [_EMPTY]) * size, size - 1, len(numbers)
        for number in numbers:
            at = hash(self.name(number)) >> 8 & shard.mask
            while shard.slots[at] != _EMPTY:
                at = at + 1 & shard.mask
            shard.slots[at] = number

    def remove(self, number: int) -> None:
        """Remove a name; its number is used again."""
        name = self.name(number)
        key = hash(name)
        shard = self._shards[key & 255]
        at = key >> 8 & shard.mask
        while shard.slots[at] != number:
            at = at + 1 & shard.mask
        shard.slots[at] = _REMOVED
        self._lengths[number] = 0
        self._free[(len(name) + _UNIT - 1) // _UNIT].append(number)
        self.count -= 1

    # --- snapshots ------------------------------------------------------------------------------
    def dump(self, first: int, end: int) -> tuple[bytes, bytes, bytes]:
        """Return the padded bytes, the lengths and the starts of the names with numbers from ``first`` to ``end``."""
        starts = self._starts
        begin = starts[first] * _UNIT if first < len(starts) else len(self._bytes)
        until = starts[end] * _UNIT if end < len(starts) else len(self._bytes)
        return bytes(self._bytes[begin:until]), bytes(self._lengths[first:end]), starts[first:end].tobytes()

    def load(self, names: bytes, lengths: bytes, starts: bytes) -> None:
        """Enter the names of a snapshot into this empty table.

        :raises ValueError: the parts do not belong together.
        """
        self._bytes += names
        self._lengths += lengths
        self._starts.frombytes(starts)
        if len(self._starts) != len(lengths):
            raise ValueError("the names do not belong together")
        end = len(names) // _UNIT
        for number, length in enumerate(lengths):
            start = self._starts[number]
            units = (self._starts[number + 1] if number + 1 < len(lengths) else end) - start
            if not 0 <= length <= min(units, _UNITS) * _UNIT:
                raise ValueError("the names do not belong together")
            if length:
                self._enter(names[start * _UNIT : start * _UNIT + length], number)
                self.count += 1
            else:
                self._free[min(units, _UNITS)].append(number)
