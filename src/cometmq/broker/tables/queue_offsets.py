"""QueueOffsets: a group's offsets in the queues of a topic, in 8 bytes each.

Queues are numbered from 0, so offsets are packed, indexed by queue number. Clients may send any queue number: with one
far beyond the others, all offsets of the pair are in a map, so that at most 16 places or twice the number of offsets
are packed. A table of a million pairs keeps only these *cells*, which the garbage collector does not look at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

Cells = bytearray | dict[int, int]
"""Offsets packed as native 64-bit numbers, with ``NO_OFFSET`` for queues that have none, or by queue ID."""

NO_OFFSET: Final = -1
_LEAST_SIZE: Final = 16
_FIRST_NAMES: Final = [str(queue_id) for queue_id in range(64)]
_INT64: Final = Struct("=q")
_CELL: Final = _INT64.size
_NONE: Final = _INT64.pack(NO_OFFSET)


def offset_in(cells: Cells, queue_id: int) -> int:
    """Return the offset of a queue, or ``NO_OFFSET``."""
    if type(cells) is bytearray:
        at = queue_id * _CELL
        offset: int = _INT64.unpack_from(cells, at)[0] if 0 <= at < len(cells) else NO_OFFSET
        return offset
    return cells.get(queue_id, NO_OFFSET)  # type: ignore[union-attr]


def offsets_in(cells: Cells) -> int:
    """Return the number of offsets."""
    # Only a missing offset has eight such bytes: the highest byte of any other is smaller.
    return len(cells) if isinstance(cells, dict) else len(cells) // _CELL - cells.count(_NONE)


def with_offset(cells: Cells, queue_id: int, offset: int) -> Cells:
    """Set the offset of a queue; return the cells, or the map that replaces them."""
    if isinstance(cells, dict):
        cells[queue_id] = offset
        return cells
    at = queue_id * _CELL
    if at < len(cells):
        _INT64.pack_into(cells, at, offset)
    elif queue_id < _LEAST_SIZE or queue_id < 2 * offsets_in(cells):
        cells += _NONE * (queue_id - len(cells) // _CELL) + _INT64.pack(offset)
    else:
        return {**QueueOffsets(cells=cells).as_dict(), queue_id: offset}
    return cells


class QueueOffsets(Mapping[int, int]):
    """Non-negative offsets by queue ID: the contents of ``cells``."""

    __slots__ = ("cells",)

    def __init__(self, offsets: Mapping[int, int] | None = None, *, cells: Cells | None = None) -> None:
        self.cells: Cells = bytearray() if cells is None else cells
        """The offsets, which :meth:`put` may replace by a map."""
        for queue_id, offset in (offsets or {}).items():
            self.put(queue_id, offset)

    def fill(self, loaded: Mapping[Any, Any]) -> bool:
        """Set all offsets from a file at once if the queues are numbered from 0 in order; return whether they were
        set.
        """
        if len(loaded) == 1:
            offset = loaded.get(_FIRST_NAMES[0])
            if type(offset) is not int or not 0 <= offset < 1 << 63:
                return False
            self.cells = bytearray(_INT64.pack(offset))
            return True
        offsets = list(loaded.values())
        if list(loaded) != _FIRST_NAMES[: len(offsets)] or {*map(type, offsets)} != {int} or min(offsets) < 0:
            return False
        try:
            self.cells = bytearray(array("q", offsets))
        except OverflowError:
            return False
        return True

    def put(self, queue_id: int, offset: int) -> None:
        """Set the offset of a queue."""
        self.cells = with_offset(self.cells, queue_id, offset)

    def remove(self, queue_id: int) -> None:
        """Remove the offset of a queue.

        :raises KeyError: the queue has no offset.
        """
        if isinstance(self.cells, dict):
            del self.cells[queue_id]
        elif self[queue_id] >= 0:
            _INT64.pack_into(self.cells, queue_id * _CELL, NO_OFFSET)

    @overload
    def get(self, key: int, default: None = None, /) -> int | None: ...
    @overload
    def get(self, key: int, default: int | T, /) -> int | T: ...
    def get(self, key: int, default: T | None = None, /) -> int | T | None:
        """Return the offset of a queue, or the default."""
        offset = offset_in(self.cells, key)
        return default if offset < 0 else offset

    def first(self, count: int) -> list[int]:
        """Return the offsets of the first queues, with ``NO_OFFSET`` for a queue that has none.

        The list is shorter if no later queue has an offset.
        """
        if isinstance(self.cells, dict):
            return [self.cells.get(queue_id, NO_OFFSET) for queue_id in range(count)]
        return array("q", bytes(self.cells[: count * _CELL])).tolist()

    def __getitem__(self, queue_id: int) -> int:
        offset = offset_in(self.cells, queue_id)
        if offset < 0:
            raise KeyError(queue_id)
        return offset

    def __contains__(self, queue_id: object) -> bool:
        return isinstance(queue_id, int) and offset_in(self.cells, queue_id) >= 0

    def __len__(self) -> int:
        return offsets_in(self.cells)

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_dict())

    def total(self, queue_nums: int) -> int:
        """Return the sum of the offsets of the first queues."""
        if isinstance(self.cells, dict):
            return sum(offset for queue_id, offset in self.cells.items() if queue_id < queue_nums)
        first = array("q", bytes(self.cells[: queue_nums * _CELL]))
        return sum(first) - NO_OFFSET * first.count(NO_OFFSET)

    def as_dict(self) -> dict[int, int]:
        """Return a copy of the offsets by queue ID."""
        if isinstance(self.cells, dict):
            return self.cells.copy()
        return {queue_id: offset for queue_id, offset in enumerate(array("q", bytes(self.cells))) if offset >= 0}
