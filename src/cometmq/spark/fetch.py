"""Pulls ranges of queue offsets as raw record bytes, with many requests in flight on one connection.

A broker answers one pull with at most 32 messages or 256 KiB (Apache's defaults), so waiting for each answer would
leave the connection idle most of the time. The ranges are cut into segments; the first few unfinished ones are
pulled side by side, one request each, and their bytes are handed on in order. What is buffered ahead of the first
segment is bounded: beyond ``_AHEAD_BYTES`` only the first segment goes on.

A broken connection is made again (the address looked up anew) and the segments go on where they were, until
nothing has arrived for ``pollTimeoutMs``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.denials import denial_step
from cometmq.remoting.headers import PullMessageResponseHeader
from cometmq.spark.cluster import Cluster, pull_header
from cometmq.spark.connections import borrowed, send_request
from cometmq.spark.decode import Records
from cometmq.spark.errors import DataLossError, SparkSourceError, UnreachableError
from cometmq.spark.options import SourceOptions
from cometmq.spark.queues import OffsetRange, Queue, joined

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes handed on at a time: what a chunk costs once is a tenth of it then, and larger ones cross no faster."""
_SEGMENT_OFFSETS: Final = 2048
_IN_FLIGHT: Final = 12
"""Segments pulled side by side."""
_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Answers kept for later segments while the first is not done; with the frames in flight this bounds a reader."""
_ANSWER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2
"""Before a request is repeated that was refused for load, or after a connection broke."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"

log = logging.getLogger("cometmq.spark")


@dataclass(slots=True)
class _Segment:
    """A part of a range: what has arrived of it, and where it goes on."""

    part: OffsetRange
    at: int
    asked: int | None = None
    """Opaque of the request in flight."""
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def queue(self) -> Queue:
        return self.part.queue

    @property
    def done(self) -> bool:
        return self.at >= self.part.end


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of one queue, in the order of their offsets."""

    queue: Queue
    data: bytes


class Fetcher:
    """Reads ranges from brokers for one task."""

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._clock = clock
        self._pause = threading.Event()
        self.lost: list[OffsetRange] = []
        """What was skipped since its messages were gone (only without ``failOnDataLoss``), neighbours joined."""

    def fetch(self, ranges: Sequence[OffsetRange]) -> Iterator[Chunk]:
        """Yield the records of ``ranges``, in order, in chunks of about ``CHUNK_BYTES``.

        :raises DataLossError: messages are gone and ``failOnDataLoss`` is true.
        :raises UnreachableError: nothing arrived for ``pollTimeoutMs``.
        """
        for _, of_broker in groupby(ranges, key=lambda part: part.queue.broker):
            waiting = deque(segment for part in of_broker for segment in _segments(part))
            yield from self._chunks(self._pieces(waiting))

    def _chunks(self, pieces: Iterator[tuple[Queue, bytes]]) -> Iterator[Chunk]:
        for queue, of_queue in groupby(pieces, key=lambda piece: piece[0]):
            gathered: list[bytes] = []
            size = 0
            for _, data in of_queue:
                gathered.append(data)
                size += len(data)
                if size >= CHUNK_BYTES:
                    yield Chunk(queue, b"".join(gathered))
                    gathered, size = [], 0
            if gathered:
                yield Chunk(queue, b"".join(gathered))

    def _pieces(self, waiting: deque[_Segment]) -> Iterator[tuple[Queue, bytes]]:
        """Yield the answers' bodies in order; connect again when the connection breaks."""
        active: deque[_Segment] = deque()
        progress_at = self._clock.monotonic()
        while waiting or active:
            queue = (active or waiting)[0].queue
            try:
                with borrowed(self._cluster.address_of(queue), self._options.access, self._answer_s) as connection:
                    for queue, data in self._exchange(connection, waiting, active):
                        yield queue, data
                        progress_at = self._clock.monotonic()
            except (BlockingConnectionError, UnreachableError) as error:
                self._cluster.forget(queue.broker)
                for segment in active:
                    segment.asked = None
                if self._clock.monotonic() - progress_at > self._options.poll_timeout_s:
                    raise UnreachableError(
                        f"nothing arrived of {(active or waiting)[0].part} for {self._options.poll_timeout_ms} ms: "
                        f"{error.message}",
                        next_step="is the broker running? option pollTimeoutMs waits longer",
                    ) from error
                log.warning("reading %s is interrupted and tried again: %s", (active or waiting)[0].part, error)
                self._pause.wait(_PAUSE_SECONDS)

    @property
    def _answer_s(self) -> float:
        return min(_ANSWER_SECONDS, self._options.poll_timeout_s)

    def _exchange(
        self, connection: BlockingConnection, waiting: deque[_Segment], active: deque[_Segment]
    ) -> Iterator[tuple[Queue, bytes]]:
        """Keep requests in flight and yield what has arrived of the first segment, until all are done."""
        asked: dict[int, _Segment] = {}
        while waiting or active or asked:
            while waiting and len(active) < _IN_FLIGHT:
                first = waiting.popleft()
                active.append(first)
            ahead = sum(segment.size for segment in active)
            for place, segment in enumerate(active):
                if segment.asked is None and not segment.done and (place == 0 or ahead < _AHEAD_BYTES):
                    self._ask(connection, segment, asked)
            answer = connection.receive()
            asking = asked.pop(answer.opaque, None) if answer.is_response else None
            if asking is None:
                continue
            asking.asked = None
            self._take(asking, answer)
            while active:
                head = active[0]
                pieces, head.pieces, head.size = head.pieces, [], 0
                for data in pieces:
                    yield head.queue, data
                if not head.done:
                    break
                active.popleft()

    def _ask(self, connection: BlockingConnection, segment: _Segment, asked: dict[int, _Segment]) -> None:
        count = min(self._options.pull_batch_size, segment.part.end - segment.at)
        options = self._options
        expression, kind = (options.sql_filter, "SQL92") if options.sql_filter else (_tags(options), "TAG")
        header = pull_header(segment.queue, segment.at, count, options.consumer_group, expression, kind)
        segment.asked = send_request(connection, RequestCode.PULL_MESSAGE, header)
        asked[segment.asked] = segment

    def _take(self, segment: _Segment, answer: RemotingCommand) -> None:
        """Move a segment on by an answer."""
        if answer.code == ResponseCode.SYSTEM_BUSY:  # tried again on a new connection, after a pause
            raise UnreachableError(f"the broker is busy: {answer.remark}")
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._lost(segment, segment.part.end, "its topic was deleted")
            return
        if answer.code not in _PULL_CODES:
            raise SparkSourceError(
                f"pulling {segment.queue} at {segment.at} was refused with code {answer.code}: {answer.remark}",
                next_step=denial_step(answer.code, answer.remark),
            )
        after = answer.header(PullMessageResponseHeader).next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            data = answer.body
            if after > segment.part.end:
                data = _within(data, segment.part)
            if data:
                segment.pieces.append(data)
                segment.size += len(data)
            segment.at = max(after, segment.at + 1)
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVING and after > segment.at:
            segment.at = after  # what lies between did not match; that is no loss
        elif segment.at < after < segment.part.end:
            self._lost(segment, after, "they were deleted")
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark == _REMOVING:
            self._lost(segment, segment.part.end, "they are being deleted")
        else:
            end = "the queue ends before them" if after <= segment.at else "they were deleted"
            self._lost(segment, segment.part.end, end)

    def _lost(self, segment: _Segment, until: int, why: str) -> None:
        """Skip to ``until``, or fail."""
        gone = OffsetRange(segment.queue, segment.at, min(until, segment.part.end))
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"messages {gone} cannot be read: {why}",
                next_step="option failOnDataLoss=false goes on without them",
            )
        log.warning("messages %s are skipped: %s", gone, why)
        self.lost = joined([*self.lost, gone])
        segment.at = gone.end


_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _tags(options: SourceOptions) -> str:
    return " || ".join(sorted(options.tags)) or "*"


def _segments(part: OffsetRange) -> Iterator[_Segment]:
    for first in range(part.first, part.end, _SEGMENT_OFFSETS):
        yield _Segment(OffsetRange(part.queue, first, min(first + _SEGMENT_OFFSETS, part.end)), first)


def _within(data: bytes, part: OffsetRange) -> bytes:
    """Cut records of later offsets off an answer that went beyond its segment."""
    records = Records(data)
    kept = records.between(part.first, part.end)
    return data[: int(kept.sizes.sum())] if len(kept) else b""
