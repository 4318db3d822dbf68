"""How fast a consumer reads and consumes, from samples of its queues; nothing is counted per message."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.client.process_queue import ProcessQueue
from cometmq.clock import Clock
from cometmq.remoting.bodies import ConsumeStatus, MessageQueue

WINDOW_S: Final = 60.0
"""Rates are those of the last minute, as Java's."""


class _Sample(msgspec.Struct):
    at: float
    pulled: dict[str, int]
    done: dict[str, int]
    failed: dict[str, int]


class Activity:
    """Samples of one push consumer, taken at each report of offsets and when somebody asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[ProcessQueue, tuple[int, int]] = {}
        self._times: dict[MessageQueue, tuple[int, int]] = {}
        self._pulled: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._samples: deque[_Sample] = deque([self._now()])

    def failed(self, topic: str, count: int) -> None:
        """Messages of a topic were not consumed."""
        self._failed[topic] = self._failed.get(topic, 0) + count

    def sample(self, queues: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Look how far the queues are."""
        now_ms = self._clock.now_ms()
        before, self._seen = self._seen, {}
        for queue, process_queue in queues.items():
            pulled, done = process_queue.pulled_count, process_queue.pulled_count - process_queue.cached_count
            old_pulled, old_done = before.get(process_queue, (0, 0))
            pulled_ms, done_ms = self._times.get(queue, (0, 0))
            self._times[queue] = (now_ms if pulled > old_pulled else pulled_ms, now_ms if done > old_done else done_ms)
            self._pulled[queue.topic] = self._pulled.get(queue.topic, 0) + pulled - old_pulled
            self._done[queue.topic] = self._done.get(queue.topic, 0) + done - old_done
            self._seen[process_queue] = (pulled, done)
        self._times = {queue: times for queue, times in self._times.items() if queue in queues}
        self._samples.append(self._now())
        while len(self._samples) > 2 and self._samples[1].at <= self._clock.monotonic() - WINDOW_S:
            self._samples.popleft()

    def times(self, queue: MessageQueue) -> tuple[int, int]:
        """When the last messages of a queue were found pulled, and consumed; ms since 1970, 0 for never."""
        return self._times.get(queue, (0, 0))

    def status(self, topic: str) -> ConsumeStatus:
        """The rates of a topic over the samples of the last minute, per second; response times are not measured."""
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last.at - first.at, 1.0)
        failed = (last.failed.get(topic, 0) - first.failed.get(topic, 0)) / seconds
        done = (last.done.get(topic, 0) - first.done.get(topic, 0)) / seconds
        return ConsumeStatus(
            pull_tps=(last.pulled.get(topic, 0) - first.pulled.get(topic, 0)) / seconds,
            consume_ok_tps=done,
            consume_failed_tps=failed,
            consume_failed_msgs=self._failed.get(topic, 0),
        )

    def _now(self) -> _Sample:
        return _Sample(self._clock.monotonic(), dict(self._pulled), dict(self._done), dict(self._failed))
