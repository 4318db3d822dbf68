"""TimerPosition: the progress of saving and delivering waiting messages, in ``comet/timer/position.json``.

Written after the log, the records and the units that it speaks of were flushed, so that after a crash
everything it says is true. Later deliveries are in the log itself: a delivered record has
the name of the waiting one in its prepared transaction offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.store.timer.unit import END_OF_TIME_MS, Units

_VERSION: Final = 1


RENUMBERED: Final = 1 << 48
"""Serials from here on are of messages whose place in their queue the log has lost: new messages have got theirs."""


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a store's log when it is opened."""

    offset: int
    serial: int
    """The queue offset that the next waiting message gets."""
    stored_ms: int
    """The store timestamp of its last record, or −1 for an empty log."""


class Lost(msgspec.Struct, frozen=True):
    """Messages that only the timer log has, since the log lost its end."""

    serial: int
    """Those with this serial or a later one …"""
    days: dict[int, int]
    """… among the first units of each day, by the day's number …"""
    added: int
    """… have a serial that is greater by this than their unit says."""


class SetBack(msgspec.Struct, frozen=True):
    """The deliveries up to the moment when the clock was set back; true until that date comes again."""

    serial: int
    """Of the messages below this serial …"""
    until_ms: int
    """… those due until then were delivered …"""
    late: list[int]
    """… but for these."""


class TimerPosition(msgspec.Struct, frozen=True):
    """One moment of the timer log and of its deliveries."""

    serial: int = 0
    """Every message of the topic below this queue offset is in the files of its day."""
    log_offset: int = 0
    """The next two fields name all deliveries below this log offset."""
    until_ms: int = -1
    """Of the messages below ``serial``, those due until then are delivered …"""
    late: list[int] = []
    """… but for these."""
    days: dict[int, int] = {}
    """The number of units in the index of each day, by the day's number since 1970."""
    lost: list[Lost] = []
    """One for each time that the log had lost messages below ``serial``, oldest first."""
    set_back: list[SetBack] = []
    """The deliveries before the clock was set back."""
    version: int = _VERSION


def after_loss(position: TimerPosition, serial: int) -> TimerPosition:
    """Return the position when the log has no message from ``serial`` on any more, and will give these serials again.

    Deliveries under a later date do not count for new messages.
    """
    added = RENUMBERED + (position.lost[-1].added if position.lost else 0)
    return msgspec.structs.replace(
        position,
        serial=min(position.serial, serial),
        late=[late + added if serial <= late < RENUMBERED else late for late in position.late],
        lost=[*position.lost, Lost(serial, position.days, added)],
        set_back=[],
    )


def read_position(path: Path) -> TimerPosition | None:
    """Read the file, or ``None`` if it is unreadable."""
    try:
        position = msgspec.json.decode(path.read_bytes(), type=TimerPosition)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    numbers = (position.serial, position.log_offset, *position.days.values(), *position.days)
    can_be = all(0 <= number < 1 << 62 for number in numbers) and -1 <= position.until_ms < END_OF_TIME_MS
    return position if position.version == _VERSION and can_be else None


class Delivered:
    """The messages that were delivered before the store was opened, or before the clock was set back.

    :param found: serial and due time of those whose delivery was found in the log after the position.
    """

    def __init__(self, position: TimerPosition, found: Mapping[int, int]) -> None:
        self._position = position
        moments = [SetBack(position.serial, position.until_ms, position.late), *position.set_back]
        self._moments = [(one.serial, one.until_ms, np.array(one.late, np.int64)) for one in moments]
        self._found: npt.NDArray[np.int64] = np.array(sorted(found), np.int64)
        self._serials = frozenset(found)
        self.until_ms = max(position.until_ms, *found.values(), -1)
        """None of them was due later, since the date was set back the last time."""

    def has(self, serial: int, due_ms: int) -> bool:
        """Return whether one message was delivered."""
        position = self._position
        before = serial < position.serial and due_ms <= position.until_ms and serial not in position.late
        return before or serial in self._serials

    def left(self, units: Units) -> Units:
        """Return the units that were not delivered."""
        serial, due = units["serial"], units["due"]
        gone = np.isin(serial, self._found)
        for written, until_ms, late in self._moments:
            gone |= ((serial < written) | (serial >= RENUMBERED)) & (due <= until_ms) & ~np.isin(serial, late)
        return units[~gone]
