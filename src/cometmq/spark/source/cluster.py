"""The cluster in a reader's options. It is queried with the blocking client, whose errors become this package's
errors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import ClassVar, Final

from cometmq.client.blocking.cluster import ANSWER_SECONDS, ClusterOptions
from cometmq.client.blocking.offsets import Bounds, OffsetClient
from cometmq.client.queries import EVERY_ANSWER, Query, pull_one
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.message.queues import Queue
from cometmq.message.record import decode_record
from cometmq.remoting.admin_bodies import QueryConsumeQueueResponseBody
from cometmq.remoting.admin_headers import QueryConsumeQueueRequestHeader
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.spark.errors import SparkSourceError, UnreachableError
from cometmq.spark.records.queues import Mark, Marks, OffsetRange, Offsets
from cometmq.spark.source.options import SourceOptions
from cometmq.spark.source.planning import SizedRange, sample_places, sized_ranges

log = logging.getLogger("cometmq.spark")

_SAMPLE: Final = 32
"""Number of sampled records whose mean size represents all records in a queue."""
_MARKS_AT_ONCE: Final = 32
"""Number of messages to request from one broker at a time, which is 128 MiB if they have the maximum size."""


class Life(Enum):
    """The kinds of changes to a queue since its mark (a message that it contained) was taken."""

    ANEW = auto()
    """The queue was deleted and recreated: its first message is newer than the mark's message."""
    CUT = auto()
    """The queue contains older messages, but not the mark's message: the queue's end was lost because a backup was
    restored or a slave was promoted.
    """


class Cluster(OffsetClient):
    """The cluster's brokers that have the requested topics.

    All methods raise UnreachableError if servers do not answer, and SparkSourceError if they return an error.
    """

    unreachable: ClassVar[type[CometMQError]] = UnreachableError
    refused: ClassVar[type[CometMQError]] = SparkSourceError
    namesrv_step = "check option namesrvAddr, and that the nameserver is running"
    broker_step = "check that it is running, or raise option pollTimeoutMs"

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._asked_at = clock.monotonic
        self.latency_ms: dict[str, float] = {}
        """Time that each broker took for its last answer about its queues' bounds."""
        super().__init__(
            ClusterOptions(
                options.namesrv_addr,
                options.access.security,
                timeout_s=min(ANSWER_SECONDS, options.poll_timeout_s),
                patience_s=options.poll_timeout_s,
                topics=options.topics,
                topic_pattern=options.topic_pattern,
                from_slaves=options.from_slaves,
                group=options.consumer_group,
            ),
            clock=clock,
        )

    def queues(self) -> list[Queue]:
        """Return the readable queues on registered brokers that the options select."""
        return [queue for queue in super().queues() if self._options.assigns(queue)]

    def _bounds_of(self, members: Sequence[Queue], patience_s: float) -> dict[Queue, Bounds]:
        began = self._asked_at()
        found = super()._bounds_of(members, patience_s)
        self.latency_ms[members[0].broker] = round((self._asked_at() - began) * 1000, 3)
        return found

    def record_sizes(self, places: Sequence[tuple[Queue, int, int]]) -> list[float | None]:
        """Return the mean size in bytes of the stored records at each place, which is a queue, an offset and a number
        of records.

        ``None`` means that nothing is stored at the place, or that the broker does not support the request.
        """
        asked = [(queue, _mean_size(queue, offset, count)) for queue, offset, count in places]
        return self.ask(asked, self._options.poll_timeout_s)

    def mean_sizes(self, start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> dict[Queue, float]:
        """Return the mean size in bytes of each queue's stored records, for queues that contain records at or after
        ``start``.
        """
        places = [
            (queue, start.get(queue, held.first), _SAMPLE)
            for queue, held in bounds.items()
            if start.get(queue, held.first) < held.end
        ]
        means = zip(places, self.record_sizes(places), strict=True)
        return {queue: mean for (queue, _, _), mean in means if mean is not None}

    def sized_ranges(self, ranges: Sequence[OffsetRange]) -> list[SizedRange]:
        """Split ranges into parts, and return them with the approximate mean size of each part's records.

        :raises UnreachableError: a broker does not answer.
        """
        places = sample_places(ranges)
        return sized_ranges(ranges, dict(zip(places, self.record_sizes(places), strict=True)))

    # Lives ----------------------------------------------------------------------------------------

    def marks(self, places: Mapping[Queue, int]) -> dict[Queue, Mark]:
        """Return the mark of the message at the given offset in each queue. Queues without a message at that offset are
        left out.
        """
        found: dict[Queue, Mark] = {}
        queues = sorted(places, key=lambda queue: queue.broker)
        for first in range(0, len(queues), _MARKS_AT_ONCE):
            some = queues[first : first + _MARKS_AT_ONCE]
            asked = [(queue, self._mark(queue, places[queue])) for queue in some]
            marks = zip(some, self.ask(asked, self._options.poll_timeout_s), strict=True)
            found |= {queue: mark for queue, mark in marks if mark is not None}
        return found

    def marks_before(self, offsets: Offsets) -> dict[Queue, Mark]:
        """Return the marks of the messages before the given offsets, if these messages still exist."""
        return self.marks({queue: offset - 1 for queue, offset in offsets.items() if offset > 0})

    def _mark(self, queue: Queue, offset: int) -> Query[Mark | None]:
        def read(answer: RemotingCommand) -> Mark | None:
            if answer.code != ResponseCode.SUCCESS:
                return None
            record = decode_record(answer.body, check_crc=False)
            if record.queue_offset > offset:  # that message is gone, and this message is a later one
                return None
            return Mark(offset, record.physical_offset, record.store_timestamp)

        return pull_one(queue, offset, self._options.consumer_group, read)._replace(answers=EVERY_ANSWER)

    def changed_lives(self, marks: Marks, bounds: Mapping[Queue, Bounds]) -> dict[Queue, Life]:
        """Return the queues whose message at their mark's offset differs from the mark.

        Messages that retention has deleted are not compared.
        """
        held = {queue: mark for queue, mark in marks.items() if bounds[queue].first <= mark.offset < bounds[queue].end}
        there = self.marks({queue: mark.offset for queue, mark in held.items()})
        other = [queue for queue, mark in there.items() if mark != marks[queue]]
        other += [queue for queue, mark in marks.items() if bounds[queue].first < bounds[queue].end <= mark.offset]
        first = self.marks({queue: bounds[queue].first for queue in other})
        return {queue: Life.ANEW if _is_newer(first[queue], marks[queue]) else Life.CUT for queue in first}

    def changed_queues(self, marks: Marks) -> dict[Queue, Life]:
        """Return the queues that were recreated since their marks were taken, according to the masters that answer."""
        bounds = self.bounds([queue for queue in self.queues() if queue in marks], on_silent=_warn)
        changed = self.changed_lives({queue: marks[queue] for queue in bounds}, bounds)
        return {queue: life for queue, life in changed.items() if self.has_master(queue)}

    def changed_meanwhile(self, marks: Marks) -> list[Queue]:
        """Return the queues that were recreated in the short time since their marks were taken.

        The check takes one request per queue. It takes more requests only if a mark's message was deleted.
        """
        now = self.marks({queue: mark.offset for queue, mark in marks.items()})
        changed = [queue for queue, mark in now.items() if mark != marks[queue]]
        gone = {queue: mark for queue, mark in marks.items() if queue not in now and self.has_master(queue)}
        lives = self.changed_lives(gone, self.bounds(gone)) if gone else {}
        return changed + [queue for queue, life in lives.items() if life is Life.ANEW]


def _warn(error: CometMQError) -> None:
    log.warning("%s", error)


def _mean_size(queue: Queue, offset: int, count: int) -> Query[float | None]:
    """Request the mean size of some records. The result is None if the broker does not support the request."""

    def read(answer: RemotingCommand) -> float | None:
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        units = decode_body(QueryConsumeQueueResponseBody, answer.body).queue_data
        return max(sum(unit.physic_size for unit in units) / len(units), 1.0) if units else None

    header = QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, offset, count)
    return Query(RequestCode.QUERY_CONSUME_QUEUE, header, f"requesting record sizes of {queue}", read, EVERY_ANSWER)


def _is_newer(mark: Mark, than: Mark) -> bool:
    return mark.stored_ms > than.stored_ms or mark.physical_offset > than.physical_offset
