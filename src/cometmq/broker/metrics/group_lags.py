"""Consumer group lags in each topic in which the group has offsets.

The topic-group pairs with the largest lags have their own samples, up to the maximum number of series in a metric
family. Each scrape reads these pairs. Of all other pairs it reads only the next
:data:`~cometmq.broker.limits.LAGS_PER_ANSWER` queues, and the next scrape continues there. A pair whose lag grows
    replaces one with a smaller lag. The sum of the other pairs' lags is from the last complete pass over all pairs.

The age of a lag is the age of the next message that a group will read. A scrape opens files for at most
:data:`~cometmq.broker.limits.AGES_PER_ANSWER` queues; later scrapes contain the ages of other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heappushpop
from typing import NamedTuple

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import AGES_PER_ANSWER, LAGS_PER_ANSWER, LAGS_SLICE_SECONDS
from cometmq.broker.metrics import families as f
from cometmq.broker.slices import Slice
from cometmq.broker.statistics.traffic import Traffic
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import RETRY_PREFIX, is_system_group, is_system_topic
from cometmq.metrics.family import OVERFLOW, Sample, Steps
from cometmq.store.message_store import ConsumeQueue, MessageStore


class _Behind(NamedTuple):
    """A group's position in a queue."""

    queue: ConsumeQueue
    offset: int
    """Offset of the first message that has not been consumed."""
    sent: int
    """Offset of the first message that has not been sent to the group."""
    end: int
    in_flight: int
    """Number of popped, unacknowledged messages before the offset."""


class _Sum:
    """Sums of lags over several topic-group pairs."""

    __slots__ = ("in_queues", "lag", "ready")

    def __init__(self) -> None:
        self.in_queues = 0
        """Number of messages after the offset."""
        self.lag = 0
        """Number of messages after the offset, and of messages in flight before it."""
        self.ready = 0

    def add(self, queues: list[_Behind]) -> int:
        """Add a pair to the sums; return its lag."""
        in_queues = sum(one.end - one.offset for one in queues)
        lag = in_queues + sum(one.in_flight for one in queues)
        self.in_queues += in_queues
        self.lag += lag
        self.ready += sum(one.end - one.sent for one in queues)
        return lag


class _StoreTimes:
    """Store times of the next messages that groups will read.

    They are cached between scrapes because most of them remain the same.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._before: dict[tuple[ConsumeQueue, int], int] = {}
        self._now: dict[tuple[ConsumeQueue, int], int] = {}
        self._left = 0

    def begin(self) -> None:
        """Begin a scrape, which may read a limited number of store times."""
        self._before, self._now = self._now, {}
        self._left = AGES_PER_ANSWER

    def of(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return a message's store time in milliseconds, -1 for a missing message, or ``None`` if this scrape may not
        read more.
        """
        place = queue, offset
        found = self._now.get(place, self._before.get(place))
        if found is None:
            if not self._left:
                return None
            self._left -= 1
            found = self._store.store_time(queue.topic, queue.queue_id, offset)
        if found >= 0:
            self._now[place] = found
        return found


class GroupLags:
    """Selects the pairs with the largest lags, and keeps them between scrapes."""

    def __init__(self, broker: BrokerContext, traffic: Traffic) -> None:
        self._broker = broker
        self._traffic = traffic
        self._own: dict[str, int] = {}
        """Lags of the pairs that have their own samples."""
        self._round: Iterator[str | None] | None = None
        """Pairs that have not been read yet in the current pass over all pairs, with a None after each slice."""
        self._seen = _Sum()
        """Sums for the pairs that have been read in the current pass."""
        self._all: _Sum | None = None
        """Sums for all pairs in the last complete pass."""
        self._times = _StoreTimes(broker.store)

    def steps(self, limit: int) -> Steps:
        """Yield the current samples.

        :param limit: number of pairs that have their own samples.
        """
        yield from self._read_next_pairs(limit)
        own, by_queue = _Sum(), _Sum()
        some: list[Sample] = []
        queues_told = 0
        until = SYSTEM_CLOCK.monotonic() + LAGS_SLICE_SECONDS
        self._times.begin()
        is_whole = len(self._broker.offsets.table) <= limit
        for key in list(self._own):
            queues = self._queues(key)
            if not queues:
                self._own.pop(key, None)
                continue
            self._own[key] = own.add(queues)
            oldest: int | None = 0
            oldest_ready: int | None = 0
            for one in queues:
                oldest = _older(oldest, self._age_ms(one, one.offset))
                oldest_ready = _older(oldest_ready, self._age_ms(one, one.sent))
                if SYSTEM_CLOCK.monotonic() >= until:
                    yield some
                    some, until = [], SYSTEM_CLOCK.monotonic() + LAGS_SLICE_SECONDS
            some += _samples(key, queues, oldest, oldest_ready)
            if self._broker.config.metrics_per_queue and queues_told + len(queues) <= limit:
                queues_told += len(queues)
                by_queue.add(queues)
                some += _of_queues(key, queues)
        yield some
        known = own if is_whole else self._all or self._seen
        if not is_whole:
            lag, ready = max(known.lag - own.lag, 0), max(known.ready - own.ready, 0)
            yield [(f.LAG_MESSAGES, OVERFLOW, lag), (f.INFLIGHT, OVERFLOW, max(lag - ready, 0))]
            yield [(f.READY, OVERFLOW, ready)]
        if self._broker.config.metrics_per_queue and (not is_whole or own.lag > by_queue.lag):
            yield [(f.QUEUE_LAG, OVERFLOW, max(known.in_queues - by_queue.in_queues, 0))]

    def _read_next_pairs(self, limit: int) -> Steps:
        """Read the next pairs of the current pass, and choose the pairs that have their own samples."""
        if self._round is None:
            self._round = (key for keys in self._broker.offsets.table.slices() for key in (*keys, None))
            self._seen = _Sum()
        own = [(lag, key) for key, lag in self._own.items()]
        heapify(own)
        looked, part = 0, Slice()
        while looked < LAGS_PER_ANSWER:
            key = next(self._round, "")
            if key is None:
                yield []
                continue
            if not key:
                self._round = None
                break
            queues = self._queues(key)
            looked += 1 + len(queues)
            if queues:
                lag = self._seen.add(queues)
                if key not in self._own:
                    if len(own) < limit:
                        heappush(own, (lag, key))
                        self._own[key] = lag
                    elif lag > own[0][0]:
                        self._own.pop(heappushpop(own, (lag, key))[1], None)
                        self._own[key] = lag
            if part.ends_after(1 + len(queues)):
                yield []
        while len(own) > limit:
            self._own.pop(heappop(own)[1], None)
        if self._round is None:
            self._all = self._seen

    def _queues(self, key: str) -> list[_Behind]:
        """Return the positions of a pair's group in its queues, or no positions if the pair has no samples."""
        return list(self._places(key))

    def _places(self, key: str) -> Iterator[_Behind]:
        topic, _, group = key.partition("@")
        broker = self._broker
        queues = broker.store.queues().get(topic)
        if not queues or is_system_group(group):
            return
        pulled = self._traffic.pulled.get((topic, group), {})
        for queue_id, offset in broker.offsets.of_queues(group, topic).items():
            queue = queues.get(queue_id)
            if queue is not None:
                end = queue.max_offset()
                first = queue.min_offset() if broker.archived is None else broker.archived.first_offset(topic, queue_id)
                offset = min(max(offset, first), end)
                sent = min(max(pulled.get(queue_id, offset), offset), end)
                yield _Behind(queue, offset, sent, end, broker.offsets.in_flight(topic, group, queue_id))

    def _age_ms(self, one: _Behind, offset: int) -> int | None:
        """Return the age of a message in milliseconds, 0 for a missing message, or ``None`` if it is not known yet."""
        if offset >= one.end:
            return 0
        # an archived message is at least as old as the first one in the store
        stored_ms = self._times.of(one.queue, max(offset, one.queue.min_offset()))
        if stored_ms is None:
            return None
        return 0 if stored_ms < 0 else max(self._broker.clock.now_ms() - stored_ms, 0)


def _older(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the greater age, or ``None`` if either one is unknown."""
    return None if one_ms is None or other_ms is None else max(one_ms, other_ms)


def _samples(key: str, queues: list[_Behind], oldest: int | None, oldest_ready: int | None) -> Iterator[Sample]:
    topic, _, group = key.partition("@")
    sums = _Sum()
    sums.add(queues)
    is_system = "true" if is_system_topic(topic) else "false"
    labels = (topic, group, "true" if topic.startswith(RETRY_PREFIX) else "false", is_system)
    yield f.LAG_MESSAGES, labels, sums.lag
    yield f.INFLIGHT, labels, sums.lag - sums.ready
    yield f.READY, labels, sums.ready
    if oldest is not None:
        yield f.LAG_LATENCY, labels, oldest
    if oldest_ready is not None:
        yield f.QUEUEING_LATENCY, labels, oldest_ready


def _of_queues(key: str, queues: list[_Behind]) -> Iterator[Sample]:
    topic, _, group = key.partition("@")
    for one in queues:
        yield f.QUEUE_LAG, (topic, group, str(one.queue.queue_id)), one.end - one.offset
