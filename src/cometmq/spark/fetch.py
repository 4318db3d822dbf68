"""Pulls ranges of queue offsets as raw record bytes, with many requests in flight on one connection.

A broker answers one pull with at most 32 messages or 256 KiB (Apache's defaults), so waiting for each answer would
leave the connection idle most of the time. The first few unfinished segments (:mod:`cometmq.spark.segments`) are
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
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.denials import denial_step
from cometmq.remoting.headers import PullMessageResponseHeader
from cometmq.spark.blocks import Blocks, Piece, contiguous
from cometmq.spark.cluster import Cluster, pull_header
from cometmq.spark.connections import borrowed, send_request
from cometmq.spark.decode import Records
from cometmq.spark.errors import DataLossError, SparkSourceError, UnreachableError
from cometmq.spark.options import SourceOptions
from cometmq.spark.queues import OffsetRange, Queue, joined
from cometmq.spark.segments import Segment, Segments

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes handed on at a time: what a chunk costs once is a tenth of it then, and larger ones cross no faster."""
_APART_BYTES: Final = CHUNK_BYTES // 2
"""From this size on bytes are handed on rather than copied together with others that do not lie behind them."""
_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Answers kept for later segments while the first is not done; with the frames in flight this bounds a reader."""
_ANSWER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2
"""Before a request is repeated that was refused for load, or after a connection broke."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"

log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of one queue, in the order of their offsets."""

    queue: Queue
    data: memoryview


class Fetcher:
    """Reads ranges from brokers for one task."""

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._clock = clock
        self._pause = threading.Event()
        self._blocks = Blocks(CHUNK_BYTES)
        self.lost: list[OffsetRange] = []
        """What was skipped since its messages were gone (only without ``failOnDataLoss``), neighbours joined."""

    def fetch(self, ranges: Sequence[OffsetRange]) -> Iterator[Chunk]:
        """Yield the records of ``ranges``, in order, in chunks of about ``CHUNK_BYTES``.

        :raises DataLossError: messages are gone and ``failOnDataLoss`` is true.
        :raises UnreachableError: nothing arrived for ``pollTimeoutMs``.
        """
        for _, of_broker in groupby(ranges, key=lambda part: part.queue.broker):
            yield from self._chunks(self._pieces(Segments(of_broker, self._options.pull_batch_size)))

    def _chunks(self, pieces: Iterator[tuple[Queue, Piece]]) -> Iterator[Chunk]:
        for queue, of_queue in groupby(pieces, key=lambda piece: piece[0]):
            gathered: list[Piece] = []
            size = 0
            for _, piece in of_queue:
                apart = gathered and not gathered[-1].is_followed_by(piece)
                if size >= CHUNK_BYTES or (apart and (size >= _APART_BYTES or not piece.begin)):
                    yield Chunk(queue, contiguous(gathered))
                    gathered, size = [], 0
                gathered.append(piece)
                size += len(piece)
            if gathered:
                yield Chunk(queue, contiguous(gathered))

    def _pieces(self, waiting: Segments) -> Iterator[tuple[Queue, Piece]]:
        """Yield the answers' bodies in order; connect again when the connection breaks."""
        active: deque[Segment] = deque()
        progress_at = self._clock.monotonic()
        while waiting or active:
            queue = active[0].queue if active else waiting.next_queue
            try:
                with borrowed(self._cluster.address_of(queue), self._options.access, self._answer_s) as connection:
                    for queue, piece in self._exchange(connection, waiting, active):
                        yield queue, piece
                        progress_at = self._clock.monotonic()
            except (BlockingConnectionError, UnreachableError) as error:
                self._cluster.forget(queue.broker)
                for segment in active:
                    segment.asked = None
                where = f"offset {active[0].at} of {active[0].queue}" if active else str(queue)
                if self._clock.monotonic() - progress_at > self._options.poll_timeout_s:
                    raise UnreachableError(
                        f"nothing arrived of {where} for {self._options.poll_timeout_ms} ms: {error.message}",
                        next_step="is the broker running? option pollTimeoutMs waits longer",
                    ) from error
                log.warning("reading %s is interrupted and tried again: %s", where, error)
                self._pause.wait(_PAUSE_SECONDS)

    @property
    def _answer_s(self) -> float:
        return min(_ANSWER_SECONDS, self._options.poll_timeout_s)

    def _exchange(
        self, connection: BlockingConnection, waiting: Segments, active: deque[Segment]
    ) -> Iterator[tuple[Queue, Piece]]:
        """Keep requests in flight and yield what has arrived of the first segment, until all are done."""
        asked: dict[int, Segment] = {}
        while waiting or active or asked:
            while waiting and len(active) < waiting.in_flight:
                active.append(waiting.cut())
            ahead = sum(segment.size for segment in active)
            for place, segment in enumerate(active):
                if segment.asked is None and not segment.done and (place == 0 or ahead < _AHEAD_BYTES):
                    self._ask(connection, segment, asked)
            answer, _ = connection.receive_into(self._blocks.room)
            asking = asked.pop(answer.opaque, None) if answer.is_response else None
            if asking is None:
                continue
            asking.asked = None
            at = asking.at
            self._take(asking, answer, self._blocks.last)
            waiting.learn(asking, at, len(self._blocks.last))
            while active:
                head = active[0]
                pieces, head.pieces, head.size = head.pieces, [], 0
                for piece in pieces:
                    yield head.queue, piece
                if not head.done:
                    break
                active.popleft()

    def _ask(self, connection: BlockingConnection, segment: Segment, asked: dict[int, Segment]) -> None:
        count = min(self._options.pull_batch_size, segment.part.end - segment.at)
        options = self._options
        expression, kind = (options.sql_filter, "SQL92") if options.sql_filter else (_tags(options), "TAG")
        header = pull_header(segment.queue, segment.at, count, options.consumer_group, expression, kind)
        segment.asked = send_request(connection, RequestCode.PULL_MESSAGE, header)
        asked[segment.asked] = segment

    def _take(self, segment: Segment, answer: RemotingCommand, body: Piece) -> None:
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
            if after > segment.part.end:
                body = _within(body, segment.part)
            if len(body):
                segment.pieces.append(body)
                segment.size += len(body)
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

    def _lost(self, segment: Segment, until: int, why: str) -> None:
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


def _within(body: Piece, part: OffsetRange) -> Piece:
    """Cut records of later offsets off an answer that went beyond its segment."""
    kept = Records(body.data).between(part.first, part.end)
    return body.shortened(int(kept.sizes.sum()))
