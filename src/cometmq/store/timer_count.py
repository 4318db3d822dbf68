"""How many messages wait, by topic and by how soon they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np

from cometmq.store.timer_unit import Units

DUE_WITHIN_SECONDS: Final = (60, 3_600, 86_400, 2_592_000)
"""A minute, an hour, a day, thirty days."""

RecordOf = Callable[[Units], str]
"""The real topic of the first of some units."""


class WaitingOfTopic(msgspec.Struct):
    """The messages of one topic that wait."""

    count: int = 0
    first_ms: int = 0
    """When the first of them is due …"""
    last_ms: int = 0
    """… and the last one."""
    due_within: dict[int, int] = {}
    """How many are due within so many seconds."""


def count_waiting(parts: Iterable[Units], now_ms: int, topic_of: RecordOf) -> dict[str, WaitingOfTopic]:
    """Count messages by topic."""
    counts: dict[int, WaitingOfTopic] = {}
    names: dict[int, str] = {}
    edges = [now_ms + seconds * 1000 for seconds in DUE_WITHIN_SECONDS]
    for units in parts:
        topics, places = np.unique(units["topic"], return_inverse=True)
        for place, topic in enumerate(topics.tolist()):
            mine = units[places == place]
            due = np.sort(mine["due"])
            waiting = counts.get(topic)
            if waiting is None:
                names[topic] = topic_of(mine)
                waiting = counts[topic] = WaitingOfTopic(
                    first_ms=int(due[0]), due_within=dict.fromkeys(DUE_WITHIN_SECONDS, 0)
                )
            waiting.count += len(due)
            waiting.first_ms = min(waiting.first_ms, int(due[0]))
            waiting.last_ms = max(waiting.last_ms, int(due[-1]))
            for seconds, reached in zip(DUE_WITHIN_SECONDS, due.searchsorted(edges, "right").tolist(), strict=True):
                waiting.due_within[seconds] += reached
    return {names[topic]: waiting for topic, waiting in sorted(counts.items(), key=lambda item: names[item[0]])}
