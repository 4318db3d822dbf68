"""Counts and lists the delayed messages in a timer log. All functions block and run on the log's worker thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.limits import MAX_LISTED_WAITING_BYTES, MAX_SEARCHED_WAITING
from cometmq.message.message import MessageExt
from cometmq.message.properties import REAL_TOPIC
from cometmq.store.timer.log import FOREVER_MS, TimerLog
from cometmq.store.timer.unit import Chosen, Units

DUE_WITHIN_SECONDS: Final = (60, 3_600, 86_400, 2_592_000)
"""A minute, an hour, a day and 30 days, in seconds."""


class WaitingOfTopic(msgspec.Struct):
    """The delayed messages of one topic."""

    count: int = 0
    first_ms: int = 0
    """The earliest due time of these messages."""
    last_ms: int = 0
    """The latest due time of these messages."""
    due_within: dict[int, int] = {}
    """Number of messages due within each number of seconds."""


def count_waiting(
    log: TimerLog, from_ms: int, near: npt.NDArray[np.int64], now_ms: int, within: Sequence[int] = DUE_WITHIN_SECONDS
) -> dict[str, WaitingOfTopic]:
    """Count delayed messages by topic: those due at or after ``from_ms``, and those whose serials are in ``near``.

    :param within: numbers of seconds; messages due within each are also counted.
    :raises OSError: the timer log cannot be read.
    """
    waiting = (
        part
        for units in log.undelivered(0, FOREVER_MS, FOREVER_MS)
        if len(part := units[(units["due"] >= from_ms) | np.isin(units["serial"], near)])
    )
    return _by_topic(waiting, now_ms, log, within)


def _by_topic(parts: Iterable[Units], now_ms: int, log: TimerLog, within: Sequence[int]) -> dict[str, WaitingOfTopic]:
    counts: dict[int, WaitingOfTopic] = {}
    names: dict[int, str] = {}
    edges = [now_ms + seconds * 1000 for seconds in within]
    for units in parts:
        topics, places = np.unique(units["topic"], return_inverse=True)
        units = units[np.lexsort((units["due"], places))]
        ends = np.cumsum(np.bincount(places, minlength=len(topics))).tolist()
        for topic, begin, end in zip(topics.tolist(), [0, *ends], ends, strict=False):
            mine = units[begin:end]
            due = mine["due"]
            waiting = counts.get(topic)
            if waiting is None:
                names[topic] = _topic_of(log, mine)
                waiting = counts[topic] = WaitingOfTopic(first_ms=int(due[0]), due_within=dict.fromkeys(within, 0))
            waiting.count += len(due)
            waiting.first_ms = min(waiting.first_ms, int(due[0]))
            waiting.last_ms = max(waiting.last_ms, int(due[-1]))
            for seconds, reached in zip(within, due.searchsorted(edges, "right").tolist(), strict=True):
                waiting.due_within[seconds] += reached
    return {names[topic]: waiting for topic, waiting in sorted(counts.items(), key=lambda item: names[item[0]])}


def _topic_of(log: TimerLog, units: Units) -> str:
    """Return the real topic of messages that all have the same topic."""
    for unit in units:
        record = log.record(int(unit["due"]), int(unit["at"]), int(unit["size"]), int(unit["crc"]))
        if record is not None:
            return MessageExt(record, 0).properties[REAL_TOPIC]
    return "?"


# --- listing --------------------------------------------------------------------------------
Place = tuple[int, int]
"""A due time, and the lowest serial with that due time."""


class Wanted(msgspec.Struct, frozen=True):
    """A request to list delayed messages."""

    begin: Place
    end_ms: int
    """Time before which the listed messages are due."""
    most: int


class Listed(msgspec.Struct, frozen=True):
    """A delayed message. ``message`` is ``None`` if its record is damaged."""

    due_ms: int
    serial: int
    size: int
    message: MessageExt | None


def list_waiting(log: TimerLog, wanted: Wanted, chosen: Chosen) -> tuple[list[Listed], Place | None]:
    """Return the first matching messages, and the position at which to continue if there are more.

    :raises OSError: the timer log cannot be read.
    """
    found: list[Listed] = []
    size_bytes = searched = 0
    low_ms, serial = wanted.begin
    while low_ms < wanted.end_ms:
        if searched >= MAX_SEARCHED_WAITING:
            return found, (low_ms, serial)
        high_ms, looked_at = log.window_end(low_ms, wanted.end_ms, wanted.most, chosen)
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
