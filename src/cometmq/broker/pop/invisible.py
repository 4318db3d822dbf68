"""InvisibleMessages: the messages in one queue that a group has received but not acknowledged.

Three arrays, sorted by offset, use 24 bytes a message; new messages are nearly always added at the end. The slot of a
removed message is only marked; marked slots are freed once they are half of all slots. Messages are not Python objects:
a million of them need 24 to 55 MB.

A look for due messages reads all slots, so it finds many of them at once: the *ready* ones, sorted by due time. Later
looks take these one after the other, until few are left. Ready messages that have been removed or changed in the
meantime are skipped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np

OVER: Final = -(2**63)
"""Value of a removed message's slot."""
NEVER: Final = 2**63 - 1
_COMPACT_MIN: Final = 64
_READY_BATCHES: Final = 16
"""Minimum number of batches that one look for due messages finds."""
_READY_SHARE: Final = 64
"""Fraction of slots (one in N) that one look finds at least, so that many due messages need few looks."""


Messages = list[tuple[int, int, int]]
"""Offset, pop time and due time of each message."""


class InvisibleMessages:
    """The offset, pop time and due time of each invisible message; times are in milliseconds since 1970."""

    __slots__ = ("_due", "_offsets", "_pop_times", "_ready", "_ready_until", "count", "first_due")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._pop_times = array("q")
        self._due = array("q")
        self.count = 0
        self.first_due = NEVER
        """Lower bound of all due times."""
        self._ready: Messages = []
        """The messages that are due first, the last one first, if the last look found more than it was asked for."""
        self._ready_until = OVER
        """Due time of the last ready message; no other message is due before it."""

    # --- adding and removing --------------------------------------------------------------------
    def add(self, offsets: Sequence[int], pop_time: int, due: int) -> None:
        """Add messages at ascending offsets; a message that is already present gets the new times."""
        count = len(offsets)
        if due <= self._ready_until:
            self._forget_ready()
        if not self._offsets or offsets[0] > self._offsets[-1]:
            self._offsets.extend(offsets)
            self._pop_times.extend([pop_time] * count)
            self._due.extend([due] * count)
            self.count += count
        else:
            for offset in offsets:
                self._set(offset, pop_time, due)
        self.first_due = min(self.first_due, due)

    def _set(self, offset: int, pop_time: int, due: int) -> None:
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            self.count += self._due[at] == OVER
            self._pop_times[at], self._due[at] = pop_time, due
            return
        self._offsets.insert(at, offset)
        self._pop_times.insert(at, pop_time)
        self._due.insert(at, due)
        self.count += 1

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return the pop time and due time of a message, or ``None`` if it is not invisible."""
        at = self._place(offset)
        return None if at < 0 else (self._pop_times[at], self._due[at])

    def has_all(self, offsets: Sequence[int], pop_time: int) -> bool:
        """Return whether all these messages are invisible and have this pop time."""
        place, pop_times = self._place, self._pop_times
        return all((at := place(offset)) >= 0 and pop_times[at] == pop_time for offset in offsets)

    def remove(self, offset: int, pop_time: int) -> int | None:
        """Remove a message if it has this pop time; return its due time, or ``None`` if it was not removed."""
        at = self._place(offset)
        if at < 0 or self._pop_times[at] != pop_time:
            return None
        due = self._due[at]
        self._due[at] = OVER
        self.count -= 1
        if self.count * 2 < len(self._offsets) and len(self._offsets) > _COMPACT_MIN:
            self._compact()
        elif not self.count:
            self._clear()
        return due

    def remove_from(self, offset: int) -> int:
        """Remove all messages at or after an offset; return their latest pop time, or 0 if there are none."""
        at = bisect_left(self._offsets, offset)
        is_there = np.frombuffer(self._due, np.int64)[at:] != OVER
        gone = np.frombuffer(self._pop_times, np.int64)[at:][is_there]
        latest = int(gone.max()) if len(gone) else 0
        self.count -= len(gone)
        del is_there, gone  # the arrays cannot be cut while numpy looks at them
        del self._offsets[at:], self._pop_times[at:], self._due[at:]
        return latest

    def _place(self, offset: int) -> int:
        offsets = self._offsets
        if not offsets:
            return -1
        at = offset - offsets[0]  # most often, the offsets have no gaps
        if not (0 <= at < len(offsets) and offsets[at] == offset):
            at = bisect_left(offsets, offset)
            if at == len(offsets) or offsets[at] != offset:
                return -1
        return -1 if self._due[at] == OVER else at

    # --- time -----------------------------------------------------------------------------------
    def due_messages(self, now_ms: int, most: int) -> Messages:
        """Return up to ``most`` due messages, the longest overdue first.

        Afterwards ``first_due`` is exact for the remaining messages.
        """
        if not self.count:
            self.first_due = NEVER
            return []
        found = self._take_ready(now_ms, most)
        if found is None:
            self._find_ready(now_ms, most)
            found = self._take_ready(now_ms, most, is_complete=True)
        assert found is not None
        return found

    def _take_ready(self, now_ms: int, most: int, *, is_complete: bool = False) -> Messages | None:
        """Return up to ``most`` ready messages, which remain ready until they are removed; set ``first_due``.

        :param is_complete: true just after a look. Otherwise, return ``None`` unless a further message is ready, since
            nobody knows then which message is due next.
        """
        ready = self._ready
        found: Messages = []
        at = len(ready)
        while at:
            at -= 1
            message = ready[at]
            if self.find(message[0]) != message[1:]:
                if not found:
                    ready.pop()
            elif len(found) < most and message[2] <= now_ms:
                found.append(message)
            else:
                self.first_due = message[2]
                return found
        return found if is_complete else None

    def _find_ready(self, now_ms: int, most: int) -> None:
        """Find the messages that are due first, and set ``first_due`` to that of the first message after them."""
        due = np.frombuffer(self._due, np.int64)
        places = np.flatnonzero((due <= now_ms) & (due != OVER))
        room = max(most * _READY_BATCHES, len(due) // _READY_SHARE)
        self.first_due = NEVER
        if len(places) > room:
            order = np.argsort(due[places], kind="stable")
            self.first_due = int(due[places[order[room]]])
            places = places[order[:room]]
        else:
            places = places[np.argsort(due[places], kind="stable")]
            later = due[due > now_ms]
            self.first_due = int(later.min()) if len(later) else NEVER
        first_last = places[::-1].tolist()
        self._ready = [(self._offsets[at], self._pop_times[at], self._due[at]) for at in first_last]
        self._ready_until = self._ready[0][2] if self._ready else OVER

    def _forget_ready(self) -> None:
        self._ready, self._ready_until = [], OVER

    def overdue(self, now_ms: int) -> tuple[int, int]:
        """Return the number of due messages and how long the first of them has been due, in milliseconds."""
        if not self.count or self.first_due > now_ms:
            return 0, 0
        due = np.frombuffer(self._due, np.int64)
        late = due[(due <= now_ms) & (due != OVER)]
        return len(late), now_ms - int(late.min()) if len(late) else 0

    # --- files ----------------------------------------------------------------------------------
    def dump(self) -> tuple[bytes, bytes, bytes]:
        """Return offsets, pop times and due times as little-endian int64."""
        self._compact()
        return self._offsets.tobytes(), self._pop_times.tobytes(), self._due.tobytes()

    @classmethod
    def load(cls, offsets: bytes, pop_times: bytes, due: bytes) -> InvisibleMessages:
        """Load the arrays that :meth:`dump` returned.

        :raises ValueError: the arrays have different lengths.
        """
        made = cls()
        for target, data in ((made._offsets, offsets), (made._pop_times, pop_times), (made._due, due)):
            target.frombytes(data)
        if not len(made._offsets) == len(made._pop_times) == len(made._due):
            raise ValueError("the arrays have different lengths")
        made.count = len(made._offsets)
        if made.count:
            made.first_due = int(np.frombuffer(made._due, np.int64).min())
        return made

    def _clear(self) -> None:
        self._offsets, self._pop_times, self._due = array("q"), array("q"), array("q")
        self.first_due = NEVER
        self._forget_ready()

    def _compact(self) -> None:
        if self.count == len(self._offsets):
            return
        keep = np.frombuffer(self._due, np.int64) != OVER
        kept = [
            array("q", np.frombuffer(column, np.int64)[keep].tobytes())
            for column in (self._offsets, self._pop_times, self._due)
        ]
        self._offsets, self._pop_times, self._due = kept
