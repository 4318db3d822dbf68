"""The executors' side of a replay: messages in the order of their queues, each sent once as far as can be known.

A queue has one request under way at a time. When nobody knows what became of one (the connection broke, the broker
was too busy to answer), the end of the queue is read for the origins of what was sent, after a pause in which a
request that is still on its way arrives; only what is not there is sent again. Every task begins with the same look,
from where the queue ended when the step was planned: so a task, or a job, that died is simply run again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.send_encoding import SendEncoder
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.sysflag import CompressionType
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import SendMessageResponseHeader
from cometmq.spark.cluster import Cluster
from cometmq.spark.decode import Records
from cometmq.spark.errors import DataLossError, SinkError, UnreachableError
from cometmq.spark.fetch import Fetcher
from cometmq.spark.options import SourceOptions, parse_options
from cometmq.spark.queues import OffsetRange, Queue
from cometmq.spark.replay_messages import REPLAY_ORIGIN, Origin, Resent, messages_of, origin_of
from cometmq.spark.sink.answers import UNSURE, next_step, told
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.routes import Routes

if TYPE_CHECKING:
    import pyarrow as pa

GROUP: Final = "cometmq_replay"
"""Producer group of replayed messages, and the group in whose name the ends of queues are read."""
MAX_CHUNK_ROWS: Final = 1024
MAX_CHUNK_BYTES: Final = 1024 * 1024
SETTLE_SECONDS: Final = 1.0
"""Pause after a request whose fate is unknown: it may still be on its way to the broker's log."""
PACE_SECONDS: Final = 0.1
"""With a rate: one request holds the messages of this time."""
_ANSWER_SECONDS: Final = 10.0
_LONGEST_PAUSE_SECONDS: Final = 5.0

SENT_DDL: Final = (
    "brokerName string, queueId int, queueOffset bigint, toBroker string, toQueue int, toOffset bigint, found boolean"
)
"""What a task tells of each message: where it stood, where it stands, and whether it was there already."""


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """What every task of a step is told."""

    servers: Mapping[str, str] = field(repr=False)
    """Options that reach the brokers."""
    replay_id: str
    queues: tuple[Queue, ...]
    """Where messages go; column ``target`` numbers them."""
    ends: tuple[int, ...]
    """Where each of them ended when the step was planned."""
    per_second: float | None
    """Messages of one task."""
    keep_born_time: bool
    timeout_ms: int

    def source_options(self, topic: str) -> SourceOptions:
        """How the ends of queues are read."""
        return parse_options(
            {
                **self.servers,
                "topic": topic,
                "consumerGroup": GROUP,
                "pollTimeoutMs": str(self.timeout_ms),
            }
        )


def send_batches(task: ReplayTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send rows sorted by ``target`` and origin; yield rows of ``SENT_DDL``.

    :raises SinkError: a message cannot be sent, or is not acknowledged in time.
    """
    pace = Pace(task.per_second)
    sender: QueueSender | None = None
    last = -1
    try:
        for batch in batches:
            targets = batch.column("target").to_pylist()
            rows = zip(targets, messages_of(batch, task.replay_id), strict=True)
            for target, of_target in itertools.groupby(rows, key=lambda row: row[0]):
                if sender is None or target != last:
                    if sender is not None:
                        sender.close()
                    sender, last = QueueSender(task, target, pace), target
                for chunk in _chunks((message for _, message in of_target), task, pace.most):
                    yield _rows(task.queues[target], sender.send(chunk))
    finally:
        if sender is not None:
            sender.close()


def _chunks(messages: Iterable[Resent], task: ReplayTask, most: int) -> Iterator[list[Resent]]:
    """Cut messages into requests: packed ones go alone, and with ``keep_born_time`` those of one time together."""
    chunk: list[Resent] = []
    size = 0
    for message in messages:
        needed = len(message.body) + len(message.properties) + 22
        if chunk and (
            len(chunk) >= most
            or size + needed > MAX_CHUNK_BYTES
            or message.packed
            or chunk[0].packed
            or (task.keep_born_time and chunk[0].born_ms != message.born_ms)
        ):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += needed
    if chunk:
        yield chunk


Outcome = list[tuple[Origin, int, bool]]
"""Each message's origin, its new offset, and whether it was there already."""


def _rows(queue: Queue, outcome: Outcome) -> Any:
    import pyarrow as pa

    count = len(outcome)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([origin.broker for origin, _, _ in outcome], pa.string()),
            pa.array([origin.queue_id for origin, _, _ in outcome], pa.int32()),
            pa.array([origin.offset for origin, _, _ in outcome], pa.int64()),
            pa.array([queue.broker] * count, pa.string()),
            pa.array([queue.queue_id] * count, pa.int32()),
            pa.array([offset for _, offset, _ in outcome], pa.int64()),
            pa.array([found for _, _, found in outcome], pa.bool_()),
        ],
        names=["brokerName", "queueId", "queueOffset", "toBroker", "toQueue", "toOffset", "found"],
    )


class Pace:
    """Keeps a task at its rate."""

    def __init__(self, per_second: float | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._per_second = per_second
        self._clock = clock
        self._next = clock.monotonic()
        self.most = (
            MAX_CHUNK_ROWS if per_second is None else max(1, min(MAX_CHUNK_ROWS, int(per_second * PACE_SECONDS)))
        )
        """Messages of one request."""

    def wait(self, messages: int) -> None:
        """Wait until so many more may be sent."""
        if self._per_second is None:
            return
        now = self._clock.monotonic()
        if self._next > now:
            threading.Event().wait(self._next - now)
        self._next = max(self._next, now) + messages / self._per_second


class QueueSender:
    """Sends to one queue; what it has sent before, as this replay, it finds and passes over."""

    def __init__(self, task: ReplayTask, target: int, pace: Pace, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._task = task
        self._queue = task.queues[target]
        self._seen = task.ends[target]
        """The queue is known up to here."""
        self._pace = pace
        self._clock = clock
        self._found: dict[Origin, int] = {}
        options = parse_sink_options({**task.servers, "topic": self._queue.topic})
        self._routes = Routes(options, {})
        self._security = options.access.security()
        credentials = self._security.credentials
        self._encoder = SendEncoder(GROUP, 4, MAX_MESSAGE_BYTES, 0, CompressionType.ZLIB, 0, credentials)
        self._opaques = itertools.count(1)
        self._connection: BlockingConnection | None = None
        self._moved = False
        self._look()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(self, chunk: list[Resent]) -> Outcome:
        """Send what is not there yet; return when all of it is.

        :raises SinkError: the broker refuses a message, or did not acknowledge some in time.
        """
        placed: dict[Origin, tuple[int, bool]] = {}
        deadline = self._clock.monotonic() + self._task.timeout_ms / 1000
        pause_s = SETTLE_SECONDS
        while True:
            left = self._left(chunk, placed)
            if not left:
                return [(message.origin, *placed[message.origin]) for message in chunk]
            self._pace.wait(len(left))
            reason = self._try(left, placed)
            if reason is None:
                continue
            if self._clock.monotonic() + pause_s > deadline:
                raise SinkError(
                    f"{len(left)} messages to {self._queue}: not acknowledged within {self._task.timeout_ms} ms; "
                    f"{reason}",
                    next_step="is the broker healthy? run the replay again to go on",
                )
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)
            self._look()

    def _left(self, chunk: list[Resent], placed: dict[Origin, tuple[int, bool]]) -> list[Resent]:
        left = []
        for message in chunk:
            if message.origin in placed:
                continue
            offset = self._found.get(message.origin)
            if offset is None:
                left.append(message)
            else:
                placed[message.origin] = (offset, True)
        return left

    def _try(self, left: list[Resent], placed: dict[Origin, tuple[int, bool]]) -> str | None:
        """Send once; tell why nobody knows whether it is stored, if so."""
        try:
            answer = self._exchange(left)
        except (BlockingConnectionError, UnreachableError) as error:
            self.close()
            self._moved = True
            return error.message
        if answer.code == ResponseCode.SUCCESS:
            first = answer.header(SendMessageResponseHeader).queue_offset
            placed |= {message.origin: (first + at, False) for at, message in enumerate(left)}
            self._seen = max(self._seen, first + len(left))
            return None
        if answer.code in UNSURE:
            return f"broker {self._queue.broker} answers {told(answer)}"
        raise SinkError(
            f"broker {self._queue.broker} refuses {len(left)} messages to {self._queue}: {told(answer)}",
            next_step=next_step(answer, too_large="its maxMessageSize must be that of the broker they came from"),
        )

    def _exchange(self, left: list[Resent]) -> RemotingCommand:
        if self._connection is None:
            address = self._routes.address_of(self._queue, again=self._moved)
            timeout_s = min(_ANSWER_SECONDS, self._task.timeout_ms / 1000)
            self._connection = BlockingConnection(address, timeout_s, self._security)
        opaque = next(self._opaques)
        self._connection.send(self._frame(left, opaque))
        while True:
            answer = self._connection.receive()
            if answer.is_response and answer.opaque == opaque:
                return answer

    def _frame(self, left: list[Resent], opaque: int) -> bytes:
        queue = MessageQueue(*self._queue)
        first = left[0]
        born_ms = first.born_ms if self._task.keep_born_time else self._clock.now_ms()
        if first.packed:
            code = RequestCode.SEND_MESSAGE_V2
            properties = first.properties.decode()
            return self._encoder.frame(code, queue, opaque, first.body, properties, first.sys_flag, first.flag, born_ms)
        body = b"".join([message.piece for message in left])
        return self._encoder.frame(RequestCode.SEND_BATCH_MESSAGE, queue, opaque, body, "", 0, 0, born_ms)

    def _look(self) -> None:
        """Read what the queue has beyond what is known of it, and note the messages of this replay.

        :raises SinkError: it cannot be told what is there.
        """
        options = self._task.source_options(self._queue.topic)
        try:
            end = Cluster(options).bounds([self._queue])[self._queue].end
            for chunk in Fetcher(options).fetch([OffsetRange(self._queue, self._seen, end)]):
                records = Records(chunk.data)
                texts = records.properties.values_of(REPLAY_ORIGIN).to_pylist()
                for offset, text in zip(records.queue_offsets.tolist(), texts, strict=True):
                    origin = origin_of(self._task.replay_id, text)
                    if origin is not None:
                        self._found[origin] = offset
        except DataLossError as error:
            raise SinkError(
                f"it cannot be told what the replay has sent to {self._queue} already: {error.message}",
                next_step="the topic has dropped messages since the run that died; replay to a fresh topic, with a "
                "new ledger",
            ) from error
        self._seen = max(self._seen, end)
