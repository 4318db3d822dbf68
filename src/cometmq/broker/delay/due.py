"""DueMessages: the delayed messages in memory, in order of delivery.

They consist of windows loaded from the timer log (sorted arrays, 56 bytes per message) and messages that arrived later
(one buffer of such units per slot of 100 ms, which becomes a sorted array when the slot begins; a heap for those that
arrive in the slot itself). If more messages are due than fit into a batch, the late
messages are delivered in the order of their due times. Messages that become due in the meantime are delivered in the
same batches, so that a burst does not delay all later messages.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.store.timer.log import FOREVER_MS
from cometmq.store.timer.unit import RECALL, UNIT_DTYPE, TimerEntry, Units

LATE_MS: Final = 20
"""A message that is overdue by this many milliseconds belongs to the backlog."""

IN_LOG: Final = -1
"""Value of ``Waiting.crc`` for a message whose record is read from the log."""


SLOT_MS: Final = 100
"""Length of a slot in milliseconds."""
_ARRIVED: Final = -1
"""Kind of a unit whose ``at`` is the log offset of its record."""
_ARRIVED_UNIT: Final = struct.Struct("<qqQQqiiII")


ADDED_AT_ONCE: Final = 10_000
"""Number of entries that are looked at in one round of the loop, which takes up to 10 ms."""


class Waiting(NamedTuple):
    """A delayed message in memory, without its record."""

    due_ms: int
    serial: int
    key: int
    topic: int
    place: int
    """Position of the record in its day's data file, or its log offset."""
    size: int
    crc: int


_DUE: Final = attrgetter("due_ms")
_SERIAL: Final = attrgetter("serial")


class _Slot:
    """The messages due in one slot that arrived before it began, in the order in which they arrived."""

    __slots__ = ("_packed", "first_ms")

    def __init__(self) -> None:
        self._packed = bytearray()
        self.first_ms = FOREVER_MS
        """The earliest due time, or a time before it."""

    def __len__(self) -> int:
        return len(self._packed) // UNIT_DTYPE.itemsize

    def add(self, entry: TimerEntry) -> None:
        due_ms = entry.due_ms
        place = entry.physical_offset, len(entry.record), _ARRIVED, 0, 0
        self._packed += _ARRIVED_UNIT.pack(due_ms, entry.serial, entry.key, entry.topic, *place)
        self.first_ms = min(self.first_ms, due_ms)

    def units(self) -> Units:
        """Return a view, which must be released before the next message is added."""
        return np.frombuffer(self._packed, UNIT_DTYPE)

    def in_order(self) -> Units:
        """Return the messages sorted by due time and serial number."""
        units = self.units()
        millisecond = (units["due"] % SLOT_MS).astype(np.uint8)  # a byte is sorted in linear time
        if (millisecond[1:] >= millisecond[:-1]).all():
            return units
        found: Units = units[np.argsort(millisecond, kind="stable")]
        return found

    def forget_from(self, due_ms: int) -> None:
        units = self.units()
        self._packed = bytearray(units[units["due"] < due_ms].tobytes())


class DueMessages:
    """The messages that will be due soon."""

    def __init__(self) -> None:
        self._heap: list[Waiting] = []
        self._slots: dict[int, _Slot] = {}
        self._order: list[int] = []
        """Heap of the keys in ``_slots``."""
        self._begun = -(1 << 62)
        """The last slot whose messages are in ``_arrived`` and in the heap."""
        self._windows: deque[Units] = deque()
        self._arrived: deque[Units] = deque()
        """Sorted messages of slots that have begun."""
        self._late: deque[Waiting] = deque()
        self._late_arrays: tuple[deque[Units], deque[Units]] = deque(), deque()
        """Late messages of ``_windows`` and of ``_arrived``, perhaps a million. They are merged when they are taken."""
        self._recalled: dict[tuple[int, int], int] = {}
        """Number of recalls by due time and key.

        If a repeated recall is not stored, the other recalls of the message remain in force.
        """
        self.taken_until_ms = -1
        """Upper bound for the due times of the messages that were taken, except those that will be loaded again."""

    def __len__(self) -> int:
        arrived = sum(map(len, self._slots.values()))
        return len(self._heap) + len(self._late) + arrived + sum(map(len, self._arrays()))

    def _arrays(self) -> Iterator[Units]:
        """Yield the sorted arrays of messages."""
        for late in self._late_arrays:
            yield from late
        yield from self._windows
        yield from self._arrived

    # --- adding ---------------------------------------------------------------------------------
    def add(self, entry: TimerEntry) -> None:
        """Add a newly arrived message or recall."""
        if entry.kind == RECALL:
            self.recall(entry.due_ms, entry.key)
            return
        slot = entry.due_ms // SLOT_MS
        if slot <= self._begun:
            place = entry.physical_offset, len(entry.record), IN_LOG
            heapq.heappush(self._heap, Waiting(entry.due_ms, entry.serial, entry.key, entry.topic, *place))
            return
        arrived = self._slots.get(slot)
        if arrived is None:
            arrived = self._slots[slot] = _Slot()
            heapq.heappush(self._order, slot)
        arrived.add(entry)

    def add_between(self, entries: Sequence[TimerEntry], low_ms: int, high_ms: int) -> Generator[None, None, int]:
        """Add those entries that are due at or after ``low_ms`` and before ``high_ms``, and return the earliest due
        time of those that are due later.

        This function pauses after each slice; entries that are appended in the meantime are not added.
        """
        next_ms = FOREVER_MS
        count = len(entries)
        for begin in range(0, count, ADDED_AT_ONCE):
            if begin:
                yield
            for entry in entries[begin : min(begin + ADDED_AT_ONCE, count)]:
                if entry.due_ms >= high_ms:
                    next_ms = min(next_ms, entry.due_ms)
                elif entry.due_ms >= low_ms:
                    self.add(entry)
        return next_ms

    def add_window(self, units: Units) -> None:
        """Add sorted messages loaded from the timer log; they must be due after those in earlier windows."""
        if len(units):
            self._windows.append(units)

    def put_back(self, messages: list[Waiting]) -> None:
        """Return removed messages to memory, in order, because they could not be stored."""
        self._late.extendleft(reversed(messages))

    def forget_from(self, due_ms: int) -> None:
        """Drop messages and recalls due at ``due_ms`` or later, because they will be loaded again."""
        self._heap = [waiting for waiting in self._heap if waiting.due_ms < due_ms]
        heapq.heapify(self._heap)
        for arrived in self._slots.values():
            arrived.forget_from(due_ms)
        self._late = deque(waiting for waiting in self._late if waiting.due_ms < due_ms)
        for windows in (self._windows, self._arrived, *self._late_arrays):
            kept = [units[units["due"] < due_ms] for units in windows]
            windows.clear()
            windows.extend(units for units in kept if len(units))
        self._recalled = {recalled: count for recalled, count in self._recalled.items() if recalled[0] < due_ms}
        self.taken_until_ms = min(self.taken_until_ms, due_ms - 1)

    # --- recalls --------------------------------------------------------------------------------
    def recall(self, due_ms: int, key: int) -> None:
        """Prevent the delivery of the message with this due time and key, even if it arrives later."""
        self._recalled[due_ms, key] = self._recalled.get((due_ms, key), 0) + 1

    def undo_recall(self, due_ms: int, key: int) -> None:
        """Cancel a recall that was not stored."""
        count = self._recalled.pop((due_ms, key), 0)
        if count > 1:
            self._recalled[due_ms, key] = count - 1

    def forget_recalls(self, before_ms: int) -> None:
        """Drop recalls of messages due before ``before_ms`` and before all remaining messages."""
        if self._recalled:
            before_ms = min(before_ms, self._first_due())
            self._recalled = {recalled: count for recalled, count in self._recalled.items() if recalled[0] >= before_ms}

    def _first_due(self) -> int:
        """Return a lower bound for the due times in memory."""
        dues = [units["due"][0] for units in self._arrays()]
        dues += [waiting.due_ms for waiting in (*self._heap[:1], *self._late)]
        dues += [slot * SLOT_MS for slot in self._order[:1]]
        return int(min(dues, default=FOREVER_MS))

    # --- removing -------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """Return the due time of the next message, or ``None`` if no message is waiting."""
        if self._late:
            return self._late[0].due_ms
        late = [int(arrays[0]["due"][0]) for arrays in self._late_arrays if arrays]
        if late:
            return min(late)
        heads = [int(arrays[0]["due"][0]) for arrays in (self._windows, self._arrived) if arrays]
        if self._heap:
            heads.append(self._heap[0].due_ms)
        if self._order:
            first = self._order[0]
            heads.append(min(self._slots[first].first_ms, (first + 1) * SLOT_MS - 1))
        return min(heads, default=None)

    def take_due(self, now_ms: int, most: int) -> list[Waiting]:
        """Remove and return up to ``most`` due messages; drop recalled messages."""
        self.taken_until_ms = max(self.taken_until_ms, now_ms)
        self._begin_slots(now_ms // SLOT_MS)
        self._move_to_backlog(now_ms - LATE_MS)
        late = bool(self._late or any(self._late_arrays))
        taken = self._take_fresh(now_ms, most // 2 if late else most)
        if late:
            self._take_late(taken, most)
        if self._recalled:
            taken = [waiting for waiting in taken if (waiting.due_ms, waiting.key) not in self._recalled]
        return taken

    def _begin_slots(self, slot: int) -> None:
        self._begun = max(self._begun, slot)
        while self._order and self._order[0] <= slot:
            arrived = self._slots.pop(heapq.heappop(self._order))
            if arrived:
                self._arrived.append(arrived.in_order())

    def _move_to_backlog(self, due_ms: int) -> None:
        heap = self._heap
        most = len(heap) // 64 + 64
        while heap and heap[0].due_ms < due_ms and most:
            self._late.append(heapq.heappop(heap))
            most -= 1
        if heap and heap[0].due_ms < due_ms:  # for a burst of messages, one sort is cheaper
            heap.sort(key=_SERIAL)
            heap.sort(key=_DUE)
            count = bisect_left(heap, due_ms, key=_DUE)
            self._late += heap[:count]
            self._heap = heap[count:]  # a sorted list is a heap
        for late, arrays in zip(self._late_arrays, (self._windows, self._arrived), strict=True):
            late += _cut(arrays, due_ms)

    def _take_late(self, taken: list[Waiting], most: int) -> None:
        """Remove the oldest late messages, and also the newest ones, so that they need not wait for the entire
        backlog.
        """
        late = self._late
        youngest = (most - len(taken)) // 2
        while youngest and late and late[-1].due_ms > late[0].due_ms:
            taken.append(late.pop())
            youngest -= 1
        while late and len(taken) < most:
            taken.append(late.popleft())
        arrays = [one for one in self._late_arrays if one]
        if not arrays:
            return
        if max(int(one[-1]["due"][-1]) for one in arrays) > min(int(one[0]["due"][0]) for one in arrays):
            taken += _take_last(arrays, (most - len(taken)) // 2)
        arrays = [one for one in arrays if one]
        if arrays:
            taken += _take_first(arrays, most - len(taken))

    def _take_fresh(self, now_ms: int, most: int) -> list[Waiting]:
        heap = self._heap
        sources = [arrays for arrays in (self._windows, self._arrived) if arrays]
        heads = [_to_waiting(arrays[0][: _count_until(arrays[0], now_ms, most)]) for arrays in sources]
        firsts = sorted((waiting, number) for number, head in enumerate(heads) for waiting in head)
        used = [0] * len(sources)
        taken: list[Waiting] = []
        for waiting, number in firsts:
            while heap and heap[0] < waiting and len(taken) < most:
                taken.append(heapq.heappop(heap))
            if len(taken) == most:
                break
            taken.append(waiting)
            used[number] += 1
        while heap and heap[0].due_ms <= now_ms and len(taken) < most:
            taken.append(heapq.heappop(heap))
        for arrays, count in zip(sources, used, strict=True):
            if count == len(arrays[0]):
                arrays.popleft()
            elif count:
                arrays[0] = arrays[0][count:]
        return taken

    # --- queries --------------------------------------------------------------------------------
    def due_until(self, due_ms: int) -> npt.NDArray[np.int64]:
        """Return the serial numbers of all messages due by ``due_ms``."""
        # Nearly all messages of begun slots are due: scanning all is cheaper than walking down the heap.
        serials = [waiting.serial for waiting in (*self._late, *self._heap) if waiting.due_ms <= due_ms]
        found = [np.array(serials, np.int64)]
        arrived = (arrived.units() for slot, arrived in self._slots.items() if slot * SLOT_MS <= due_ms)
        found += [units["serial"][units["due"] <= due_ms] for units in (*self._arrays(), *arrived)]
        return np.concatenate(found)


def _to_waiting(units: Units) -> list[Waiting]:
    return [
        Waiting(due_ms, serial, key, topic, at, size, IN_LOG if kind == _ARRIVED else crc)
        for due_ms, serial, key, topic, at, size, kind, crc, _ in units.tolist()
    ]


def _take_first(sources: Sequence[deque[Units]], most: int) -> list[Waiting]:
    """Remove and return the ``most`` messages that are due first; each source is sorted."""
    heads = [_first_dues(source, most) for source in sources]
    order = np.argsort(np.concatenate(heads), kind="stable")[:most]
    taken: list[Waiting] = []
    for source, left in zip(sources, _counts(heads, order), strict=True):
        while left:
            units = source.popleft()
            count = min(left, len(units))
            taken += _to_waiting(units[:count])
            if count < len(units):
                source.appendleft(units[count:])
            left -= count
    return sorted(taken)


def _take_last(sources: Sequence[deque[Units]], most: int) -> list[Waiting]:
    """Remove and return the ``most`` messages that are due last; each source is sorted."""
    tails = [_last_dues(source, most) for source in sources]
    dues = np.concatenate(tails)
    order = np.argsort(dues, kind="stable")[max(len(dues) - most, 0) :]
    taken: list[Waiting] = []
    for source, left in zip(sources, _counts(tails, order), strict=True):
        while left:
            units = source.pop()
            begin = max(len(units) - left, 0)
            taken += _to_waiting(units[begin:])
            if begin:
                source.append(units[:begin])
            left -= len(units) - begin
    return sorted(taken)


def _first_dues(source: deque[Units], most: int) -> npt.NDArray[np.int64]:
    """Return the first due times of a source, at least ``most`` if it has as many."""
    parts: list[Units] = []
    for units in source:
        parts.append(units["due"][:most])
        if sum(map(len, parts)) >= most:
            break
    return np.concatenate(parts)


def _last_dues(source: deque[Units], most: int) -> npt.NDArray[np.int64]:
    """Return the last due times of a source, at least ``most`` if it has as many."""
    parts: list[Units] = []
    for units in reversed(source):
        parts.append(units["due"][max(len(units) - most, 0) :])
        if sum(map(len, parts)) >= most:
            break
    return np.concatenate(parts[::-1])


def _counts(parts: Sequence[npt.NDArray[np.int64]], chosen: npt.NDArray[np.int64]) -> list[int]:
    """Return how many of the chosen places in the concatenated parts are in each of them."""
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    counts: list[int] = np.bincount(numbers[chosen], minlength=len(parts)).tolist()
    return counts


def _count_until(units: Units, due_ms: int, most: int) -> int:
    """Return the number of units due by ``due_ms``, but at most ``most``."""
    return int(units["due"][:most].searchsorted(due_ms, "right"))


def _cut(arrays: deque[Units], due_ms: int) -> Iterator[Units]:
    """Remove the messages due before ``due_ms`` from the sorted arrays, and yield them."""
    while arrays and int(arrays[0]["due"][0]) < due_ms:
        units = arrays.popleft()
        count = int(units["due"].searchsorted(due_ms))
        if count < len(units):
            arrays.appendleft(units[count:])
        yield units[:count]
