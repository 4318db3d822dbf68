"""TimerPosition: how far waiting messages are saved and delivered, in ``comet/timer/position.json``.

Written after the log, the records and the units that it speaks of were flushed, so that after a crash
everything it says is true. What was delivered since stands in the log itself: a delivered record has
the name of the waiting one in its prepared transaction offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.store.timer_unit import Units

_VERSION: Final = 1


class TimerPosition(msgspec.Struct, frozen=True):
    """One moment of the timer log and of its deliveries."""

    serial: int = 0
    """Every message of the topic below this queue offset is in the files of its day."""
    log_offset: int = 0
    """Deliveries below this log offset are among those that the next two fields tell."""
    until_ms: int = -1
    """Of the messages below ``serial``, those due until then are delivered …"""
    late: list[int] = []
    """… but for these."""
    days: dict[int, int] = {}
    """How many units the index of each day has, by the day's number since 1970."""
    version: int = _VERSION


def read_position(path: Path) -> TimerPosition | None:
    """Read the file; ``None`` when there is none that can be read."""
    try:
        position = msgspec.json.decode(path.read_bytes(), type=TimerPosition)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return position if position.version == _VERSION else None


class Delivered:
    """Which messages were delivered before the store was opened.

    :param found: serial and due time of those whose delivery was found in the log behind the position.
    """

    def __init__(self, position: TimerPosition, found: Mapping[int, int]) -> None:
        self._position = position
        self._late = np.array(position.late, np.int64)
        self._found: npt.NDArray[np.int64] = np.array(sorted(found), np.int64)
        self._serials = frozenset(found)
        self.until_ms = max(position.until_ms, *found.values(), -1)
        """None of them was due later."""

    def has(self, serial: int, due_ms: int) -> bool:
        """Whether one message was delivered."""
        position = self._position
        before = serial < position.serial and due_ms <= position.until_ms and serial not in position.late
        return before or serial in self._serials

    def left(self, units: Units) -> Units:
        """The units that were not delivered."""
        serial = units["serial"]
        before = (serial < self._position.serial) & (units["due"] <= self._position.until_ms)
        if len(self._late):
            before &= ~np.isin(serial, self._late)
        if len(self._found):
            before |= np.isin(serial, self._found)
        return units[~before]
