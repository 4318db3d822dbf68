"""Converts Spark's filters to bounds of a read: queues by name and number, offsets, and store times.

A filter only reduces the number of messages that are pulled; Spark applies the filter again to the rows. Narrowing by
``storeTimestamp`` relies on store times that do not decrease within a queue, which is not the case if the broker's
clock was set back.

Spark calls ``pushFilters`` only when ``spark.sql.python.filterPushdown.enabled`` is true; if the setting is false,
Spark rejects a reader that has that method. Spark 4.3 does not pass the setting to a source. ``asked_for_filters``
searches the stack for the module of Spark's push-down worker, which creates the reader only if the setting is true.

Spark 4.3 stores the filtered partitions with the DataFrame: a later query of the same DataFrame without filters reads
only those partitions. So nothing is pushed down unless the option ``pushFilters`` allows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from cometmq.spark.records.queues import Offsets, Queue

_WORKER: Final = "data_source_pushdown_filters"
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1


def asked_for_filters() -> bool:
    """Return True if Spark's push-down worker is the caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.removesuffix(".py").endswith(_WORKER):
            return True
        frame = frame.f_back
    return False


@dataclass(slots=True)
class _Interval:
    """A range of integers, ``low <= n <= high``."""

    low: int = _LOWEST
    high: int = _HIGHEST

    def narrow(self, low: int = _LOWEST, high: int = _HIGHEST) -> None:
        self.low, self.high = max(self.low, low), min(self.high, high)


@dataclass(slots=True)
class Window:
    """The bounds of the messages to read after applying filters."""

    names: dict[str, frozenset[str]] = field(default_factory=dict)
    queue_ids: _Interval = field(default_factory=_Interval)
    offsets: _Interval = field(default_factory=_Interval)
    times_ms: _Interval = field(default_factory=_Interval)

    def holds(self, queue: Queue) -> bool:
        """Return True if any message in a queue can pass the filters."""
        return (
            queue.topic in self.names.get("topic", (queue.topic,))
            and queue.broker in self.names.get("brokerName", (queue.broker,))
            and self.queue_ids.low <= queue.queue_id <= self.queue_ids.high
        )

    def narrowed(self, start: Offsets, end: Offsets, offsets_at: Callable[[int], Offsets]) -> tuple[Offsets, Offsets]:
        """Narrow starts and ends to the messages that can pass the filters. ``offsets_at`` finds offsets by store time
        in ms.
        """
        low, high = self.offsets.low, min(self.offsets.high, _HIGHEST - 1) + 1
        start = {queue: max(offset, low) for queue, offset in start.items()}
        end = {queue: min(offset, high) for queue, offset in end.items()}
        if self.times_ms.low > _LOWEST:
            found = offsets_at(self.times_ms.low)
            start = {queue: max(offset, found[queue]) for queue, offset in start.items()}
        if self.times_ms.high < _HIGHEST:
            found = offsets_at(self.times_ms.high + 1)
            end = {queue: min(offset, found[queue]) for queue, offset in end.items()}
        return start, end


def window_of(filters: Iterable[Any]) -> Window:
    """Combine filters that must all be true. Filters on other columns are ignored."""
    window = Window()
    intervals = {"queueId": window.queue_ids, "queueOffset": window.offsets, "storeTimestamp": window.times_ms}
    for one in filters:
        column = ".".join(getattr(one, "attribute", ()))
        kind = type(one).__name__
        if column in ("topic", "brokerName") and kind in ("EqualTo", "EqualNullSafe", "In"):
            values = frozenset(one.value if kind == "In" else (one.value,))
            window.names[column] = window.names.get(column, values) & values
        elif column in intervals and kind in _BOUNDS and not _is_null(one.value):
            intervals[column].narrow(*_BOUNDS[kind](one.value))
    return window


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and (not value or any(v is None for v in value)))


def _floor(value: Any) -> int:
    """Convert a bound to an integer: a time to milliseconds, rounded down."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    return int(value)


_BOUNDS: Final[dict[str, Callable[[Any], tuple[int, int]]]] = {
    "EqualTo": lambda value: (_floor(value), _floor(value)),
    "EqualNullSafe": lambda value: (_floor(value), _floor(value)),
    "In": lambda values: (min(map(_floor, values)), max(map(_floor, values))),
    "GreaterThan": lambda value: (_floor(value), _HIGHEST),
    "GreaterThanOrEqual": lambda value: (_floor(value), _HIGHEST),
    "LessThan": lambda value: (_LOWEST, _floor(value)),
    "LessThanOrEqual": lambda value: (_LOWEST, _floor(value)),
}
"""Return inclusive bounds, which are never too narrow. For strict comparisons, they are too wide by one."""
