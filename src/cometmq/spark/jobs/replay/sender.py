"""The executors' part of a replay: it sends each message once, in queue order.

A queue has one request in flight at a time. When the result of a request is unknown (because the connection broke or
the broker was too busy to answer), the sender first pauses, so that a request in flight can arrive. Then it searches
the end of the queue for the origins of its messages, and sends only the missing messages again. Every task first reads
its queues, starting at the ends that were planned for the step, so a killed task or job can simply be run again.

A message is sent with the same body, flag and properties. Its origin is the property ``REPLAY_ORIGIN``,
``<replay>/<queue>/<offset>/<born, ms>/<broker>``: a replay recognises its messages by the origin, and consumers can
read the original values, which the new broker's header cannot contain, from it. Properties that would make a broker
delay the message, or treat it as a half message of a transaction, are kept under their names with the prefix
``REPLAYED_``.

Like the sink, the replay uses the client's sender, but not the sink's guards, which identify a row by its number or id.
A replay must also find its messages on Apache's brokers, and its messages keep the ids from the old topic. The mapping
contains the new offset of each message. Compressed bodies are sent unchanged, one per request.
"""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cometmq.client.blocking.cluster import ANSWER_SECONDS
from cometmq.client.blocking.outbox import SenderOptions
from cometmq.client.blocking.sender import Sender
from cometmq.client.pace import Pace
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.encoding import SendEncoder
from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.batch import encode_piece
from cometmq.message.properties import (
    DELAY,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TIMER_DEL_UNIQKEY,
    TIMER_NAMES,
    TRAN_MSG,
    PropertiesText,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import SendMessageResponseHeader
from cometmq.spark.errors import DataLossError, SinkError
from cometmq.spark.jobs.replay.ledger import OWNER_SECONDS, OpenedLedger
from cometmq.spark.records.decode import Records
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.placing import Routes
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.fetch import Fetcher
from cometmq.spark.source.options import SourceOptions, parse_options

REPLAY_ORIGIN: Final = "REPLAY_ORIGIN"
REPLAYED: Final = "REPLAYED_"
ACTING: Final = frozenset({DELAY, TRAN_MSG, TIMER_DEL_UNIQKEY, "INNER_MULTI_DISPATCH", *TIMER_NAMES})
"""Properties that request an action from a broker that has already been performed."""
_TOUCHED: Final = re.compile(
    f"(?:^|{PROPERTY_SEPARATOR})(?:{'|'.join(sorted(ACTING | {REPLAY_ORIGIN}))}){NAME_VALUE_SEPARATOR}"
)
_ORIGIN: Final = re.compile(r"([^/]*)/(\d{1,10})/(\d{1,19})/-?\d{1,20}/(.*)", re.DOTALL)

SENT_COLUMNS: Final = (
    *("brokerName", "queueId", "queueOffset", "bornTimestamp", "flag", "sysFlag", "propertiesText"),
    "coalesce(storedBody, body) AS stored",
)
"""Columns that a replay reads from an archive, in Spark SQL."""


class Origin(NamedTuple):
    """A message's position in the archive."""

    broker: str
    queue_id: int
    offset: int


class Resent(NamedTuple):
    """One message to send."""

    origin: Origin
    born_ms: int
    flag: int
    sys_flag: int
    """Return the flags for the body's compression. Other flags are not copied."""
    body: bytes
    properties: bytes

    @property
    def packed(self) -> bool:
        """Return True if the body is compressed. RocketMQ does not allow compressed messages in batches."""
        return bool(self.sys_flag & COMPRESSED)

    @property
    def piece(self) -> bytes:
        """Encode the message as an entry in a batch."""
        return b"".join(encode_piece(self.flag, self.body, self.properties))


def origin_text(replay_id: str, origin: Origin, born_ms: int) -> str:
    """Return the value of ``REPLAY_ORIGIN``."""
    return f"{replay_id}/{origin.queue_id}/{origin.offset}/{born_ms}/{origin.broker}"


def origin_of(replay_id: str, text: str | None) -> Origin | None:
    """Parse the result of :func:`origin_text`. Return None if it belongs to another replay."""
    match = None if text is None else _ORIGIN.fullmatch(text)
    if match is None or match[1] != replay_id:
        return None
    return Origin(match[4], int(match[2]), int(match[3]))


def properties_with(text: str, origin: str) -> str:
    """Return a message's properties with its origin added. Properties that request an action from a broker are
    renamed.
    """
    if _TOUCHED.search(text):
        pieces = []
        for piece in text.split(PROPERTY_SEPARATOR):
            name, _, _ = piece.partition(NAME_VALUE_SEPARATOR)
            if name != REPLAY_ORIGIN:
                pieces.append(REPLAYED + piece if name in ACTING else piece)
        text = PROPERTY_SEPARATOR.join(pieces)
    return PropertiesText(text).plus({REPLAY_ORIGIN: origin}).text + PROPERTY_SEPARATOR


def messages_of(batch: pa.RecordBatch, replay_id: str) -> Iterator[Resent]:
    """Yield the messages in a batch of rows with ``SENT_COLUMNS``.

    :raises SinkError: a message cannot be resent.
    """
    born = batch.column("bornTimestamp").cast(pa.int64())  # a producer may claim a time that no calendar has
    columns: Sequence[list[Any]] = [
        born.to_pylist(),
        *(
            batch.column(name).to_pylist()
            for name in ("brokerName", "queueId", "queueOffset", "flag", "sysFlag", "propertiesText", "stored")
        ),
    ]
    for born_us, broker, queue_id, offset, flag, sys_flag, text, body in zip(*columns, strict=True):
        origin = Origin(broker, queue_id, offset)
        born_ms = born_us // 1000
        properties = properties_with(text or "", origin_text(replay_id, origin, born_ms)).encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise SinkError(
                f"message {offset} of queue {queue_id} of {broker} is too large with the property {REPLAY_ORIGIN}: "
                f"{len(properties)} bytes of properties, at most {MAX_PROPERTIES_BYTES} are allowed",
                next_step="exclude it with a predicate (--where)",
            )
        packing = sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK)
        yield Resent(origin, born_ms, flag, packing if packing & COMPRESSED else 0, body, properties)


GROUP: Final = "cometmq_replay"
"""Producer group for replayed messages, and consumer group for reading the queues' ends."""
MAX_CHUNK_ROWS: Final = 1024
MAX_CHUNK_BYTES: Final = 1024 * 1024
SETTLE_SECONDS: Final = 1.0
"""Pause after a request whose result is unknown: it may still reach the broker's log."""

_OWNER_ATTEMPTS: Final = 10
"""Maximum number of requests until one is answered in time."""

SENT_DDL: Final = (
    "brokerName string, queueId int, queueOffset bigint, toBroker string, toQueue int, toOffset bigint, found boolean"
)
"""Columns of the mapping: old position, new position, and a flag for messages that the topic already contained."""


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The settings that every task of a step needs."""

    servers: Mapping[str, str] = field(repr=False)
    """Options for connections to the brokers."""
    ledger: OpenedLedger
    queues: tuple[Queue, ...]
    """Queues that messages are sent to; the column ``target`` contains an index into this list."""
    ends: tuple[int, ...]
    """End of each target when the step was planned."""
    per_second: tuple[float, ...] | None
    """For each target, the rate of the task that sends to it, in messages per second."""
    keep_born_time: bool
    timeout_ms: int

    def source_options(self, topic: str) -> SourceOptions:
        """Return the options for reading the ends of queues."""
        return parse_options(
            {
                **self.servers,
                "topic": topic,
                "consumerGroup": GROUP,
                "pollTimeoutMs": str(self.timeout_ms),
            }
        )


def send_batches(task: ReplayTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send rows that are sorted by ``target`` and origin. Yield rows with the schema ``SENT_DDL``.

    :raises SinkError: a message cannot be sent, or is not acknowledged in time.
    """
    sender = TaskSender(task)
    senders: dict[int, QueueSender] = {}
    pace: Pace | None = None
    try:
        for batch in batches:
            targets = batch.column("target").to_pylist()
            if pace is None:
                pace = Pace(None if task.per_second is None else task.per_second[targets[0]])
            rows = zip(targets, messages_of(batch, task.ledger.replay_id), strict=True)
            while window := list(itertools.islice(rows, pace.window(MAX_CHUNK_ROWS))):
                parts: dict[int, list[Resent]] = {}
                for target, message in window:
                    parts.setdefault(target, []).append(message)
                for target, messages in parts.items():
                    if target not in senders:
                        senders[target] = QueueSender(task, target, pace, sender)
                    for chunk in _chunks(messages, task):
                        yield _rows(task.queues[target], senders[target].send(chunk))
    finally:
        sender.close()


def _chunks(messages: Iterable[Resent], task: ReplayTask) -> Iterator[list[Resent]]:
    """Group messages into requests. Each compressed message has its own request. With ``keep_born_time``, all messages
    in a request have the same born time.
    """
    chunk: list[Resent] = []
    size = 0
    for message in messages:
        needed = len(message.body) + len(message.properties) + 22
        if chunk and (
            size + needed > MAX_CHUNK_BYTES
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
"""Return the mapping's rows for a chunk of messages."""


def _rows(queue: Queue, outcome: Outcome) -> Any:
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


class TaskSender(Sender):
    """A task's sender. Its queues take turns on one connection to each broker."""

    def __init__(self, task: ReplayTask) -> None:
        options = parse_sink_options({**task.servers, "topic": task.queues[0].topic})
        timeout_s = task.timeout_ms / 1000
        security = options.access.security()
        super().__init__(
            SenderOptions(
                security,
                timeout_s=timeout_s,
                answer_s=min(ANSWER_SECONDS, timeout_s),
                error=SinkError,
                too_large="its maxMessageSize must be at least that of the original broker",
                too_late="check that the broker is healthy, and run the replay again to continue",
                first_pause_s=SETTLE_SECONDS,
            ),
            Routes(options, {}).address_of,
        )
        self.encoder: Final = SendEncoder(GROUP, ProducerConfig(), security.credentials)
        self._ledger = task.ledger
        self._asked_at = -math.inf

    def demand_owner(self) -> None:
        """Check that no other job has opened the ledger, unless this was checked a moment ago.

        :raises ArchiveError: another job has.
        :raises SinkError: the ledger's storage answers too slowly.
        """
        for _ in range(_OWNER_ATTEMPTS):
            if SYSTEM_CLOCK.monotonic() - self._asked_at < OWNER_SECONDS:
                return
            self._asked_at = SYSTEM_CLOCK.monotonic()  # before the answer, which may take longer
            self._ledger.demand_owner()
        raise SinkError(
            f"the ledger {self._ledger.storage.url} answers so slowly that another job could open it meanwhile",
            next_step="run the replay again when its storage is faster",
        )


class QueueSender:
    """Sends messages to one queue. Messages that this replay has already sent are detected and skipped."""

    def __init__(self, task: ReplayTask, target: int, pace: Pace, sender: TaskSender) -> None:
        self.queue = task.queues[target]
        self._task = task
        self._seen = task.ends[target]
        """Offset up to which the queue has been searched for sent messages."""
        self._pace = pace
        self._found: dict[Origin, int] = {}
        self._placed: dict[Origin, tuple[int, bool]] = {}
        """For each message of :meth:`send`, its new offset, and True if the topic already contained the message."""
        self._sender = sender
        self._search_queue_end()

    def send(self, chunk: list[Resent]) -> Outcome:
        """Send the messages that the queue does not contain yet. Return when the queue contains all of them.

        :raises SinkError: the broker rejects a message, or did not acknowledge messages in time.
        """
        self._placed = {}
        if (request := self.request(chunk)) is not None:
            self._sender.submit(request)
            self._sender.finish()
        return [(message.origin, *self._placed[message.origin]) for message in chunk]

    def request(self, chunk: list[Resent]) -> _Request | None:
        """Build a request from the messages that are not known to be in the queue, at the replay's rate."""
        left = []
        for message in chunk:
            offset = self._found.get(message.origin)
            if offset is None:
                left.append(message)
            else:
                self._placed[message.origin] = (offset, True)
        if not left:
            return None
        threading.Event().wait(self._pace.take(len(left)))
        self._sender.demand_owner()
        return _Request(self, left)

    def left(self, chunk: list[Resent]) -> _Request | None:
        """After a failure, build a request from the messages that are not in the queue."""
        self._search_queue_end()
        return self.request(chunk)

    def sent(self, messages: list[Resent], first: int) -> None:
        """Record that the queue contains the messages, starting at offset ``first``."""
        self._placed |= {message.origin: (first + at, False) for at, message in enumerate(messages)}
        self._seen = max(self._seen, first + len(messages))

    def frame(self, messages: list[Resent], opaque: int) -> bytes:
        """Encode messages as one request."""
        queue, encoder = MessageQueue(*self.queue), self._sender.encoder
        first = messages[0]
        born_ms = first.born_ms if self._task.keep_born_time else SYSTEM_CLOCK.now_ms()
        if first.packed:
            properties = first.properties.decode()
            code = RequestCode.SEND_MESSAGE_V2
            return encoder.frame(code, queue, opaque, first.body, properties, first.sys_flag, first.flag, born_ms)
        body = b"".join([message.piece for message in messages])
        return encoder.frame(RequestCode.SEND_BATCH_MESSAGE, queue, opaque, body, "", 0, 0, born_ms)

    def _search_queue_end(self) -> None:
        """Read the part of the queue that has not been searched yet, and record this replay's messages.

        :raises SinkError: the topic's oldest messages were deleted, so it is unknown which messages were sent.
        """
        options = self._task.source_options(self.queue.topic)
        try:
            end = Cluster(options).bounds([self.queue])[self.queue].end
            for chunk in Fetcher(options).fetch([OffsetRange(self.queue, self._seen, end)]):
                records = Records(chunk.data)
                texts = records.properties.values_of(REPLAY_ORIGIN).to_pylist()
                for offset, text in zip(records.queue_offsets.tolist(), texts, strict=True):
                    origin = origin_of(self._task.ledger.replay_id, text)
                    if origin is not None:
                        self._found[origin] = offset
        except DataLossError as error:
            raise SinkError(
                f"it is unknown which messages the replay sent to {self.queue} before: {error.message}",
                next_step="the topic deleted messages since that run; replay to a new topic, with a new ledger",
            ) from error
        self._seen = max(self._seen, end)


@dataclass(frozen=True, slots=True)
class _Request:
    """The messages of one request, in the form that the client's sender needs."""

    sender: QueueSender
    messages: list[Resent]

    @property
    def queue(self) -> Queue:
        return self.sender.queue

    @property
    def size(self) -> int:
        return sum(len(message.body) + len(message.properties) for message in self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __str__(self) -> str:
        return f"{len(self)} messages to {self.queue}"

    def frame(self, opaque: int) -> bytes:
        return self.sender.frame(self.messages, opaque)

    def left(self) -> _Request | None:
        return self.sender.left(self.messages)

    def acknowledged(self, answer: RemotingCommand) -> None:
        self.sender.sent(self.messages, answer.header(SendMessageResponseHeader).queue_offset)
