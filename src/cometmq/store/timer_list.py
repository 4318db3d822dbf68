"""The messages that wait, one by one in the order of their due times, a bounded part at a time."""

from __future__ import annotations

import msgspec

from cometmq.limits import MAX_LISTED_WAITING_BYTES, MAX_SEARCHED_WAITING
from cometmq.message.message import MessageExt
from cometmq.store.timer_log import TimerLog
from cometmq.store.timer_unit import Chosen

Place = tuple[int, int]
"""A due time, and the least serial of those due then."""


class Wanted(msgspec.Struct, frozen=True):
    """What to list."""

    begin: Place
    end_ms: int
    """Only what is due before this."""
    most: int


class Listed(msgspec.Struct, frozen=True):
    """A waiting message; ``message`` is ``None`` when its record is damaged."""

    due_ms: int
    serial: int
    size: int
    message: MessageExt | None


def list_waiting(log: TimerLog, wanted: Wanted, chosen: Chosen) -> tuple[list[Listed], Place | None]:
    """The first of the messages that are wanted and chosen, and where to go on if these were not all (worker thread).

    :raises OSError: the timer log cannot be read.
    """
    found: list[Listed] = []
    size_bytes = searched = 0
    low_ms, serial = wanted.begin
    while low_ms < wanted.end_ms:
        if searched >= MAX_SEARCHED_WAITING:
            return found, (low_ms, serial)
        high_ms, looked_at = log.reach(low_ms, wanted.end_ms, wanted.most, chosen)
        searched += looked_at
        units = log.waiting(low_ms, high_ms)
        left = chosen(units) & ((units["due"] > low_ms) | (units["serial"] >= serial))
        for due_ms, number, _, _, at, size, _, crc, _ in units[left].tolist():
            if len(found) == wanted.most or (found and size_bytes + size > MAX_LISTED_WAITING_BYTES):
                return found, (due_ms, number)
            size_bytes += size
            record = log.record(due_ms, at, size, crc)
            message = MessageExt(record, 0) if record is not None else None
            found.append(Listed(due_ms, number, size, message))
        low_ms, serial = high_ms, 0
    return found, None
