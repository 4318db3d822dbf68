"""DueMessages: the delayed messages in memory, in order of delivery.

They consist of windows loaded from the timer log (sorted arrays, 56 bytes per message) and messages that arrived later
(one list per second, and a heap once the second has begun). If more messages are due than fit into a batch, the late
messages are delivered in the order of their due times. Messages that become due in the meantime are delivered in the
same batches, so that a burst does not delay all later messages.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import Final, NamedTuple

from cometmq.store.timer.log import FOREVER_MS
from cometmq.store.timer.unit import RECALL, TimerEntry, Units

LATE_MS: Final = 20
"""A message that is overdue by this many milliseconds belongs to the backlog."""

IN_LOG: Final = -1
"""Value of ``Waiting.crc`` for a message whose record is read from the log."""


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


class DueMessages:
    """The messages that will be due soon."""

    def __init__(self) -> None:
        self._heap: list[Waiting] = []
        self._seconds: dict[int, list[Waiting]] = {}
        self._order: list[int] = []
        """Heap of the keys in ``_seconds``."""
        self._begun = -(1 << 62)
        """The last second whose messages are in the heap."""
        self._windows: deque[Units] = deque()
        self._late: deque[Waiting] = deque()
        self._late_windows: deque[Units] = deque()
        self._recalled: dict[tuple[int, int], int] = {}
        """Number of recalls by due time and key.

        If a repeated recall is not stored, the other recalls of the message remain in force.
        """
        self.taken_until_ms = -1
        """Upper bound for the due times of the messages that were taken, except those that will be loaded again."""

    def __len__(self) -> int:
        return (
            len(self._heap)
            + len(self._late)
            + sum(len(arrived) for arrived in self._seconds.values())
            + sum(len(units) for units in self._windows)
            + sum(len(units) for units in self._late_windows)
        )

    # --- adding ---------------------------------------------------------------------------------
    def add(self, entry: TimerEntry) -> None:
        """Add a newly arrived message or recall."""
        if entry.kind == RECALL:
            self.recall(entry.due_ms, entry.key)
            return
        waiting = Waiting(
            entry.due_ms, entry.serial, entry.key, entry.topic, entry.physical_offset, len(entry.record), IN_LOG
        )
        second = entry.due_ms // 1000
        if second <= self._begun:
            heapq.heappush(self._heap, waiting)
            return
        arrived = self._seconds.get(second)
        if arrived is None:
            self._seconds[second] = [waiting]
            heapq.heappush(self._order, second)
        else:
            arrived.append(waiting)

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
        for second, arrived in self._seconds.items():
            self._seconds[second] = [waiting for waiting in arrived if waiting.due_ms < due_ms]
        self._late = deque(waiting for waiting in self._late if waiting.due_ms < due_ms)
        for windows in (self._windows, self._late_windows):
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
        dues = [units["due"][0] for units in (*self._windows, *self._late_windows)]
        dues += [waiting.due_ms for waiting in (*self._heap[:1], *self._late)]
        dues += [second * 1000 for second in self._order[:1]]
        return int(min(dues, default=FOREVER_MS))

    # --- removing -------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """Return the due time of the next message, or ``None`` if no message is waiting."""
        if self._late:
            return self._late[0].due_ms
        if self._late_windows:
            return int(self._late_windows[0]["due"][0])
        heads = []
        if self._heap:
            heads.append(self._heap[0].due_ms)
        elif self._order:
            first = self._order[0]
            heads.append(min((waiting.due_ms for waiting in self._seconds[first]), default=first * 1000))
        if self._windows:
            heads.append(int(self._windows[0]["due"][0]))
        return min(heads, default=None)

    def take_due(self, now_ms: int, most: int) -> list[Waiting]:
        """Remove and return up to ``most`` due messages; drop recalled messages."""
        self.taken_until_ms = max(self.taken_until_ms, now_ms)
        self._begin_seconds(now_ms // 1000)
        self._move_to_backlog(now_ms - LATE_MS)
        late = bool(self._late or self._late_windows)
        taken = self._take_fresh(now_ms, most // 2 if late else most)
        if late:
            self._take_late(taken, most)
        if self._recalled:
            taken = [waiting for waiting in taken if (waiting.due_ms, waiting.key) not in self._recalled]
        return taken

    def _begin_seconds(self, second: int) -> None:
        self._begun = max(self._begun, second)
        while self._order and self._order[0] <= second:
            self._heap += self._seconds.pop(heapq.heappop(self._order))
            heapq.heapify(self._heap)

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
        while self._windows and int(self._windows[0]["due"][0]) < due_ms:
            units = self._windows.popleft()
            count = int(units["due"].searchsorted(due_ms))
            self._late_windows.append(units[:count])
            if count < len(units):
                self._windows.appendleft(units[count:])

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
        windows = self._late_windows
        if windows and int(windows[-1]["due"][-1]) > int(windows[0]["due"][0]):
            units = windows.pop()
            count = min((most - len(taken)) // 2, len(units))
            taken += _to_waiting(units[len(units) - count :])
            if count < len(units):
                windows.append(units[: len(units) - count])
        while windows and len(taken) < most:
            units = windows.popleft()
            count = most - len(taken)
            taken += _to_waiting(units[:count])
            if count < len(units):
                windows.appendleft(units[count:])

    def _take_fresh(self, now_ms: int, most: int) -> list[Waiting]:
        heap, windows = self._heap, self._windows
        loaded: list[Waiting] = []
        if windows and int(windows[0]["due"][0]) <= now_ms:
            units = windows[0]
            loaded = _to_waiting(units[: min(most, int(units["due"].searchsorted(now_ms, "right")))])
        taken: list[Waiting] = []
        used = 0
        while len(taken) < most:
            arrived = heap[0] if heap and heap[0].due_ms <= now_ms else None
            if used < len(loaded) and (arrived is None or loaded[used] < arrived):
                taken.append(loaded[used])
                used += 1
            elif arrived is not None:
                taken.append(heapq.heappop(heap))
            else:
                break
        if used:
            units = windows.popleft()
            if used < len(units):
                windows.appendleft(units[used:])
        return taken

    # --- queries --------------------------------------------------------------------------------
    def due_until(self, due_ms: int) -> list[int]:
        """Return the serial numbers of all messages due by ``due_ms``."""
        serials = [waiting.serial for waiting in self._late if waiting.due_ms <= due_ms]
        for units in (*self._late_windows, *self._windows):
            serials += units["serial"][units["due"] <= due_ms].tolist()
        for second, arrived in self._seconds.items():
            if second * 1000 <= due_ms:
                serials += [waiting.serial for waiting in arrived if waiting.due_ms <= due_ms]
        # Nearly all messages of begun seconds are due: scanning all is cheaper than walking down the heap.
        serials += [waiting.serial for waiting in self._heap if waiting.due_ms <= due_ms]
        return serials


def _to_waiting(units: Units) -> list[Waiting]:
    return [
        Waiting(due_ms, serial, key, topic, at, size, crc)
        for due_ms, serial, key, topic, at, size, _, crc, _ in units.tolist()
    ]
