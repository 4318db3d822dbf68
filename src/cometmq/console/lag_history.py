"""The lag of recently viewed groups over the last hour, stored in memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Final

from cometmq.client.admin import QueueProgress
from cometmq.clock import Clock
from cometmq.console.limits import SAMPLE_SECONDS, SAMPLES
from cometmq.message.names import retry_topic

MAX_GROUPS: Final = 100
"""Maximum number of groups that have a history. The least recently viewed group is dropped."""


class LagHistory:
    """Stores a lag sample each time a group is viewed, but at most one every five seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    def note(self, group: str, queues: Sequence[QueueProgress]) -> None:
        """Add a group's current lag."""
        samples = self._groups.setdefault(group, deque(maxlen=SAMPLES))
        self._groups.move_to_end(group)
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        now = self._clock.now_ms() / 1000
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS * 0.9:
            samples.append((now, sum(one.lag for one in queues if one.queue.topic != retry_topic(group))))

    def of(self, group: str) -> list[Mapping[str, float]]:
        """Return a group's samples."""
        return [{"time": at, "lag": lag} for at, lag in self._groups.get(group, ())]
