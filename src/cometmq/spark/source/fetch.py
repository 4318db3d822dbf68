"""Pulls ranges of queue offsets as raw record bytes, with many requests in flight on one connection.

A broker answers one pull with at most 32 messages or 256 KiB (Apache's defaults), so waiting for each answer would
leave the connection idle most of the time. Ranges are cut into segments that need one answer each. A segment's length
is adjusted to the number of messages in the answers. The first few unfinished segments are pulled in parallel. Most
segments need one answer, so answers arrive in the order in which they are needed. Each is received into the
same buffer, which stays in the processor's cache, and yielded before the next one is received; answers for later
segments are copied. Memory is bounded: if later segments hold ``_AHEAD_BYTES``, only the first segment continues.

If the connection breaks, the address is looked up and the connection is opened again. The segments then continue where
they stopped. Reading fails if nothing has arrived for ``pollTimeoutMs``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NoReturn

import numpy as np

from cometmq.client.blocking.connections import borrowed
from cometmq.client.queries import pull_header
from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import denial_step
from cometmq.remoting.headers import PullMessageResponseHeader
from cometmq.spark.errors import DataLossError, SparkSourceError, UnreachableError
from cometmq.spark.records.decode import Records
from cometmq.spark.records.queues import NO_MARKS, Marks, OffsetRange, Queue, joined
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import SourceOptions

MAX_IN_FLIGHT: Final = 12
"""Number of segments that are pulled in parallel once the first answer has shown how many messages an answer contains.
"""


@dataclass(slots=True)
class Segment:
    """Part of a range, with the bytes that have arrived and the next offset."""

    part: OffsetRange
    at: int
    asked: int | None = None
    """Number (opaque) of the request in flight."""
    pieces: list[memoryview] = field(default_factory=list)
    size: int = 0

    @property
    def queue(self) -> Queue:
        """Return the queue that contains the segment's messages."""
        return self.part.queue

    @property
    def done(self) -> bool:
        """Return True if the entire segment has arrived."""
        return self.at >= self.part.end


class Segments:
    """Splits ranges into segments, in order and on demand.

    :param most_offsets: number of offsets in a segment, used until an answer shows that answers contain fewer messages.
    """

    def __init__(self, ranges: Iterable[OffsetRange], most_offsets: int) -> None:
        self._waiting = deque(part for part in ranges if len(part))
        self._most_offsets = most_offsets
        self._offsets = most_offsets
        self._most_bytes = 0
        """Size of the largest response received so far, in bytes."""
        self.in_flight = 1

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def next_queue(self) -> Queue:
        """Return the queue that the next segment belongs to."""
        return self._waiting[0].queue

    def next_segment(self) -> Segment:
        """Return the next segment."""
        part = self._waiting.popleft()
        end = min(part.first + self._offsets, part.end)
        if end < part.end:
            self._waiting.appendleft(OffsetRange(part.queue, end, part.end))
        return Segment(OffsetRange(part.queue, part.first, end), part.first)

    def adjust_to_answer(self, segment: Segment, before: int, size: int) -> None:
        """Adjust the segment length after an answer of ``size`` bytes that moved a segment forward from offset
        ``before``.
        """
        self.in_flight = MAX_IN_FLIGHT
        self._most_bytes = max(self._most_bytes, size)
        if not segment.done:  # a little fewer than in this answer, since sizes differ
            self._offsets = max((segment.at - before) * 15 // 16, 1)
        elif segment.at - before >= self._offsets and 2 * size < self._most_bytes:
            self._offsets = min(2 * self._offsets, self._most_offsets)


_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Maximum number of answer bytes for later segments while the first segment is unfinished. Frames in flight are not
included.
"""
_ANSWER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2
"""Pause before a request is repeated because the broker was busy or the connection broke."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"

log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Complete records from one queue, in offset order. The bytes are valid until the next chunk is requested."""

    queue: Queue
    data: memoryview


class Fetcher:
    """Reads ranges from brokers for one task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._pause = threading.Event()
        self._buffer = memoryview(bytearray())
        self.lost: list[OffsetRange] = []
        """Ranges of lost messages that were skipped, which happens only if ``failOnDataLoss`` is false. Adjacent ranges
        are joined.
        """

    def fetch(self, ranges: Sequence[OffsetRange], marks: Marks = NO_MARKS) -> Iterator[Chunk]:
        """Yield the records of ``ranges``, in order, as they arrive.

        :param marks: for each queue, a message that it contained when the ranges were planned.
        :raises DataLossError: messages are lost and ``failOnDataLoss`` is true, or a topic was recreated during the
            read.
        :raises UnreachableError: nothing arrived for ``pollTimeoutMs``.
        """
        for _, of_broker in groupby(ranges, key=lambda part: part.queue.broker):
            yield from self._chunks(Segments(of_broker, self._options.pull_batch_size))
        # so the messages that were read are a mixture of both topics
        if changed := self._cluster.changed_meanwhile(marks):
            raise DataLossError(
                f"{min(changed)} was recreated while it was being read",
                next_step="restart the query; it will then read the new queue",
            )

    def _chunks(self, waiting: Segments) -> Iterator[Chunk]:
        """Yield the answers' bodies in order. Reconnect if the connection breaks."""
        active: deque[Segment] = deque()
        progress_at = SYSTEM_CLOCK.monotonic()
        while waiting or active:
            queue = active[0].queue if active else waiting.next_queue
            try:
                with borrowed(
                    self._cluster.address_of(queue), self._options.access.security(), self._answer_s
                ) as connection:
                    for chunk in self._exchange(connection, waiting, active):
                        yield chunk
                        progress_at = SYSTEM_CLOCK.monotonic()
            except (BlockingConnectionError, UnreachableError) as error:
                self._cluster.forget(queue.broker)
                for segment in active:
                    segment.asked = None
                where = f"offset {active[0].at} of {active[0].queue}" if active else str(queue)
                if SYSTEM_CLOCK.monotonic() - progress_at > self._options.poll_timeout_s:
                    raise UnreachableError(
                        f"no data arrived from {where} for {self._options.poll_timeout_ms} ms: {error.message}",
                        next_step=error.next_step or "check that the broker is running, or raise option pollTimeoutMs",
                    ) from error
                log.warning("reading %s was interrupted and will be retried: %s", where, error)
                self._pause.wait(_PAUSE_SECONDS)

    @property
    def _answer_s(self) -> float:
        return min(_ANSWER_SECONDS, self._options.poll_timeout_s)

    def _exchange(self, connection: BlockingConnection, waiting: Segments, active: deque[Segment]) -> Iterator[Chunk]:
        """Keep requests in flight, and yield the first segment's bytes as they arrive, until all segments are done."""
        asked: dict[int, Segment] = {}
        while waiting or active or asked:
            while waiting and len(active) < waiting.in_flight:
                active.append(waiting.next_segment())
            ahead = sum(segment.size for segment in active)
            for place, segment in enumerate(active):
                if segment.asked is None and not segment.done and (place == 0 or ahead < _AHEAD_BYTES):
                    self._send_pull(connection, segment, asked)
            answer, body = connection.receive_into(self._room)
            asking = asked.pop(answer.opaque, None) if answer.is_response else None
            if asking is None:
                continue
            asking.asked = None
            at = asking.at
            self._apply_answer(asking, answer, body if asking is active[0] else memoryview(bytes(body)))
            waiting.adjust_to_answer(asking, at, len(body))
            while active:
                head = active[0]
                pieces, head.pieces, head.size = head.pieces, [], 0
                for piece in pieces:
                    yield Chunk(head.queue, piece)
                if not head.done:
                    break
                active.popleft()

    def _room(self, size: int) -> memoryview:
        """Return the buffer for an answer of ``size`` bytes."""
        if size > len(self._buffer):
            self._buffer = np.empty(size, np.uint8).data
        return self._buffer[:size]

    def _send_pull(self, connection: BlockingConnection, segment: Segment, asked: dict[int, Segment]) -> None:
        count = min(self._options.pull_batch_size, segment.part.end - segment.at)
        options = self._options
        tags = " || ".join(sorted(options.tags)) or "*"
        expression, kind = (options.sql_filter, "SQL92") if options.sql_filter else (tags, "TAG")
        header = pull_header(segment.queue, segment.at, count, options.consumer_group, expression, kind)
        segment.asked = connection.submit(RequestCode.PULL_MESSAGE, header)
        asked[segment.asked] = segment

    def _apply_answer(self, segment: Segment, answer: RemotingCommand, body: memoryview) -> None:
        """Move a segment forward by an answer."""
        if answer.code == ResponseCode.SYSTEM_BUSY:  # the request is tried again on a new connection, after a pause
            raise UnreachableError(f"the broker is busy: {answer.remark}")
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._skip_lost(segment, segment.part.end, "its topic was deleted")
            return
        if answer.code not in _PULL_CODES:
            raise SparkSourceError(
                f"pulling {segment.queue} at {segment.at} failed with code {answer.code}: {answer.remark}",
                next_step=denial_step(answer.code, answer.remark),
            )
        after = answer.header(PullMessageResponseHeader).next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            if after > segment.part.end:
                body = _up_to_end(body, segment.part)
            if len(body):
                segment.pieces.append(body)
                segment.size += len(body)
            segment.at = max(after, segment.at + 1)
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVING and after > segment.at:
            segment.at = after  # the messages in between did not match the filter: this is no loss
        elif segment.at < after < segment.part.end:
            self._skip_lost(segment, after, "they were deleted")
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark == _REMOVING:
            self._skip_lost(segment, segment.part.end, "they are being deleted")
        else:
            self._skip_lost(segment, segment.part.end, _AT_END if after <= segment.at else "they were deleted")

    def _skip_lost(self, segment: Segment, until: int, why: str) -> None:
        """Skip lost messages up to ``until``, or fail if ``failOnDataLoss`` is true."""
        if self._cluster.reads_slave(segment.queue):  # a slave's answer proves no loss
            self._leave_slave(segment, why)
        gone = OffsetRange(segment.queue, segment.at, min(until, segment.part.end))
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"messages {gone} cannot be read: {why}",
                next_step="set failOnDataLoss=false to skip them",
            )
        log.warning("messages %s are skipped: %s", gone, why)
        self.lost = joined([*self.lost, gone])
        segment.at = gone.end

    def _leave_slave(self, segment: Segment, why: str) -> NoReturn:
        """Request the segment again: from the slave if the slave is only behind, otherwise from the master.

        :raises UnreachableError: always.
        """
        if why == _AT_END and self._cluster.has_master(segment.queue):
            raise UnreachableError("the slave is behind its master", next_step=_OF_MASTER)
        self._cluster.leave_slave(segment.queue.broker)
        raise UnreachableError(f"only the master knows whether the messages are lost: {why} on its slave")


_AT_END: Final = "the queue ends before them"
_OF_MASTER: Final = "check that the slave is connected; or set readFrom=master, or raise pollTimeoutMs"
_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _up_to_end(body: memoryview, part: OffsetRange) -> memoryview:
    """Remove the records that are after the segment's end from an answer."""
    return body[: int(Records(body).between(part.first, part.end).sizes.sum())]
