"""QueueOffsets: a group's offsets in the queues of a topic, in 8 bytes each.

Queues are numbered from 0, so offsets are in an array, indexed by queue number. Clients may send any queue number:
offsets with numbers far beyond the others are in a map, so that the array has at most 16 places or twice the number of
offsets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

NO_OFFSET: Final = -1
_LEAST_SIZE: Final = 16
_FIRST_NAMES: Final = [str(queue_id) for queue_id in range(64)]


class QueueOffsets(Mapping[int, int]):
    """Non-negative offsets by queue ID."""

    __slots__ = ("_array", "_far")

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self._array = array("q")
        self._far: dict[int, int] | None = None
        for queue_id, offset in (offsets or {}).items():
            self.put(queue_id, offset)

    def fill(self, loaded: Mapping[Any, Any]) -> bool:
        """Set all offsets from a file at once if the queues are numbered from 0 in order; return whether they were
        set.
        """
        offsets = list(loaded.values())
        if list(loaded) != _FIRST_NAMES[: len(offsets)] or {*map(type, offsets)} != {int} or min(offsets) < 0:
            return False
        try:
            self._array = array("q", offsets)
        except OverflowError:
            return False
        return True

    def put(self, queue_id: int, offset: int) -> None:
        """Set the offset of a queue."""
        size = len(self._array)
        if self._far is not None and queue_id in self._far:
            self._far[queue_id] = offset
        elif queue_id < size:
            self._array[queue_id] = offset
        elif queue_id < _LEAST_SIZE or queue_id < 2 * len(self):
            self._array.extend([NO_OFFSET] * (queue_id - size))
            self._array.append(offset)
        else:
            if self._far is None:
                self._far = {}
            self._far[queue_id] = offset

    def remove(self, queue_id: int) -> None:
        """Remove the offset of a queue.

        :raises KeyError: the queue has no offset.
        """
        if self._far is not None and queue_id in self._far:
            del self._far[queue_id]
        elif self[queue_id] >= 0:
            self._array[queue_id] = NO_OFFSET

    @overload
    def get(self, key: int, default: None = None, /) -> int | None: ...
    @overload
    def get(self, key: int, default: int | T, /) -> int | T: ...
    def get(self, key: int, default: T | None = None, /) -> int | T | None:
        """Return the offset of a queue, or the default."""
        if 0 <= key < len(self._array):
            offset = self._array[key]
            if offset >= 0:
                return offset
        return default if self._far is None else self._far.get(key, default)

    def first(self, count: int) -> list[int]:
        """Return the offsets of the first queues; fewer if the array is shorter.

        It has ``NO_OFFSET`` for a queue that has none, or whose offset is in the map.
        """
        return self._array[:count].tolist()

    def __getitem__(self, queue_id: int) -> int:
        offset = self.get(queue_id, NO_OFFSET)
        if offset < 0:
            raise KeyError(queue_id)
        return offset

    def __contains__(self, queue_id: object) -> bool:
        return isinstance(queue_id, int) and self.get(queue_id, NO_OFFSET) >= 0

    def __len__(self) -> int:
        return len(self._array) - self._array.count(NO_OFFSET) + (0 if self._far is None else len(self._far))

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_dict())

    def total(self, queue_nums: int) -> int:
        """Return the sum of the offsets of the first queues."""
        first = self._array if len(self._array) <= queue_nums else self._array[:queue_nums]
        far = () if self._far is None else [offset for queue_id, offset in self._far.items() if queue_id < queue_nums]
        return sum(first) - NO_OFFSET * first.count(NO_OFFSET) + sum(far)

    def as_dict(self) -> dict[int, int]:
        """Return the offsets by queue ID."""
        found = {queue_id: offset for queue_id, offset in enumerate(self._array) if offset >= 0}
        if self._far is not None:
            found.update(self._far)
        return found
