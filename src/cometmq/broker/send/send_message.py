"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) (``SendMessageProcessor``; hot path).

A request is checked, and its record is added to the current turn (:mod:`cometmq.broker.turn.store_turn`), which stores
the records of all requests together and answers the requests. A delayed or transactional message is parked by the first
detour that accepts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.parked_message import recall_handle
from cometmq.broker.send.large_batches import LARGE_BYTES, LargeBatches, ReadBatch
from cometmq.broker.send.plain_batches import PlainBatches
from cometmq.broker.send.sequenced_sends import SequencedSends
from cometmq.broker.statistics.traffic import FIFO, NORMAL
from cometmq.broker.turn.answers import OFFSET_BYTES, PendingSend, packed_offsets
from cometmq.broker.turn.inner_message import Detour, InnerMessage, SendProperties, read_properties
from cometmq.broker.turn.life_time import begin_life, with_end
from cometmq.broker.turn.targets import RefusedError, SendHeader, SendTarget
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.compression import DecompressionError, decompress
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.message.properties import (
    CLUSTER,
    PROPERTY_SEPARATOR,
    RETRY_TOPIC,
    SHARDING_KEY,
    decode_properties,
    join_properties,
    property_mark,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK, TRANSACTION_ROLLBACK
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY
from cometmq.remoting.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.permissions import Action, needs_topic
from cometmq.remoting.processors import PostponeError, Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.write_batch import NewRecord

_TRANSACTION_FLAGS: Final = TRANSACTION_ROLLBACK
"""Mask for the two bits of ``sysFlag`` that contain a message's transaction state."""
_SHARDED: Final = property_mark(SHARDING_KEY)
"""The property by which FIFO messages are recognized, as it occurs in a properties text."""

BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


class SendMessageProcessor:
    """Handles send requests.

    :param detours: tried in this order for each message with a detour property.
    :param batches: stores plain batches, if the compiled core is installed.
    """

    def __init__(
        self,
        broker: BrokerContext,
        sequenced: SequencedSends,
        detours: Sequence[Detour] = (),
        batches: PlainBatches | None = None,
    ) -> None:
        self._live = broker.live
        self._targets = broker.targets
        self._known = broker.targets.known
        self._groups = broker.groups
        self._failed = broker.failed
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._store_host = broker.turn.store_host
        self._answers = broker.answers
        self._limiter = broker.limiter
        self._sequenced = sequenced
        self._batches = batches
        self._large = LargeBatches()
        self._detours = detours
        self._traffic = broker.stats.traffic
        self._cluster = join_properties({CLUSTER: broker.config.broker_cluster_name})
        self._broker_name = broker.config.broker_name
        self._max_body_bytes = broker.config.max_message_size
        self._max_stored_bytes = broker.turn.max_stored_bytes
        self._segments_are_small = self._max_stored_bytes < self._max_body_bytes + MAX_PROPERTIES_BYTES

    # --- requests -----------------------------------------------------------------------------
    @answers(
        RequestCode.SEND_MESSAGE,
        header=SendMessageRequestHeader,
        limits=("MAX_PROPERTIES_BYTES",),
        permission=needs_topic(Action.PUB),
    )
    @answers(
        RequestCode.SEND_MESSAGE_V2,
        header=SendMessageRequestHeaderV2,
        limits=("MAX_PROPERTIES_BYTES",),
        permission=needs_topic(Action.PUB),
    )
    def send(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Store one message; answer at the end of the turn, or later with SYNC_FLUSH or SYNC_MASTER."""
        header = request.header
        if header.batch:
            return self.send_batch(connection, request, body)
        try:
            target = self._target(connection, header)
            queue = target.queues.get(header.queue_id) or target.open_queue(header.queue_id, connection.remote_address)
            queue_id = queue.queue_id
            if target.is_retry:
                target, queue = self._after_retries(target, queue, request)
            properties = read_properties(header.properties or "", self._cluster)
            if properties.priority >= 0 and not target.is_retry:
                queue = target.open_level(properties.priority, connection.remote_address)
                queue_id = queue.queue_id
            handle: str | None = None
            if properties.detour is not None or properties.life is not None:
                physical_offset, queue_offset, handle = self._put_detoured(
                    connection, target, queue, header, body, properties
                )
            else:
                stored = properties.text.encode()
                if len(body) > self._max_body_bytes or len(stored) > MAX_PROPERTIES_BYTES:
                    raise self._illegal()
                if self._segments_are_small:
                    self._check_fits(body, len(stored))
                record = NewRecord(
                    body,
                    stored,
                    header.flag,
                    header.sys_flag | target.sys_flag,
                    header.born_timestamp,
                    connection.peer_bytes,
                    self._store_host,
                    header.reconsume_times or 0,
                    0,
                    properties.tags_code,
                    properties.index_keys,
                )
                is_fifo = self._traffic is not None and _SHARDED in (header.properties or "")
                physical_offset, queue_offset = self._turn.put(target, queue, record, FIFO if is_fifo else NORMAL)
        except RefusedError as refused:
            return refused.response(self._answers.ext)
        if not request.flag & FLAG_ONEWAY or connection.hooked:
            self._turn.answer(
                PendingSend(
                    connection,
                    request,
                    queue_id,
                    queue_offset,
                    physical_offset,
                    properties.wait,
                    len(body),
                    recall_handle=handle,
                )
            )
        self._turn.end_if_full()
        return None

    @answers(
        RequestCode.SEND_BATCH_MESSAGE,
        limits=("MAX_BATCH_MESSAGES", "MAX_DECOMPRESSED_BYTES"),
        permission=needs_topic(Action.PUB),
    )
    def send_batch(
        self, connection: ServerConnection, request: Request[SendMessageRequestHeaderV2], body: bytes
    ) -> Response | None:
        """Store the messages of a batch in one queue, in order, and send one response."""
        header = request.header
        read = self._large.take(request)
        try:
            target = self._target(connection, header)
            queue = target.queues.get(header.queue_id) or target.open_queue(header.queue_id, connection.remote_address)
            if target.is_lite:
                raise _no_detours()
            offsets = self._add_batch(connection, request, target, queue, body) if read is None else read
            if isinstance(offsets, ReadBatch):
                sequence = offsets.sequence
                records = self._records(connection, target, header, offsets)
                if sequence is not None:
                    before = self._sequenced.stored_before(sequence, queue, records)
                    if before is not None:
                        return before
                offsets = self._put_records(target, queue, records, sequence)
            self._limiter.more(connection, header.producer_group, len(offsets) // OFFSET_BYTES - 1)
        except RefusedError as refused:
            return refused.response(self._answers.ext)
        except PostponeError:
            if read is not None:
                self._large.keep(request, read)
            raise
        if not request.flag & FLAG_ONEWAY or connection.hooked:
            self._turn.answer(
                PendingSend(
                    connection,
                    request,
                    queue.queue_id,
                    queue.next_offset - len(offsets) // OFFSET_BYTES,
                    0,
                    read_properties(header.properties or "", "").wait,
                    len(body),
                    offsets,
                )
            )
        self._turn.end_if_full()
        return None

    # --- one record ---------------------------------------------------------------------------
    def _target(self, connection: ServerConnection, header: SendHeader) -> SendTarget:
        """Return the topic of a send request; first check that messages can be stored now.

        :raises RefusedError: with the response's code and text.
        :raises PostponeError: an earlier batch of this connection, or the topic, must be stored first.
        """
        turn = self._turn
        if not turn.is_open:
            turn.begin()
        if turn.refusal is not None:
            raise turn.refusal
        if self._large.reading:
            self._large.require_turn(connection)
        if turn.waits and turn.waiters.full(connection):
            raise RefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        return self._known.get(header.topic) or self._targets.resolve(header)

    def _after_retries(
        self, target: SendTarget, queue: ConsumeQueue, request: Request[Any]
    ) -> tuple[SendTarget, ConsumeQueue]:
        """Return the topic and queue for a message sent to a retry topic: the retry topic or the dead-letter topic.

        (``handleRetryAndDLQ``.) As in Apache's broker, the DELAY property is kept, so dead letters are also delayed.

        :raises RefusedError: the group is unknown, or the maximum number of topics has been reached.
        :raises PostponeError: the topic is still being saved.
        """
        header = request.header
        group = target.topic.removeprefix(RETRY_PREFIX)
        if self._groups.find(group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        times = header.reconsume_times or 0
        if not self._failed.is_dead(times, group, header.max_reconsume_times, request.version):
            return target, queue
        name = self._failed.dead_letter_topic(group).topic_name
        self._targets.require_saved(name)
        dead = self._targets.inner(name)
        if self._traffic is not None:
            failed_topic = decode_properties(header.properties or "").get(RETRY_TOPIC, target.topic)
            self._traffic.died(failed_topic, group)
        return dead, dead.queues.get(0) or dead.open_queue(0, "")

    def _put_detoured(
        self,
        connection: ServerConnection,
        target: SendTarget,
        queue: ConsumeQueue,
        header: SendHeader,
        body: bytes,
        properties: SendProperties,
    ) -> tuple[int, int, str | None]:
        """Store a message that needs a detour, using the first detour that accepts it, or that has a life time.

        Return its log offset, queue offset and recall handle.

        :raises RefusedError: a detour refuses the message, or the life time is invalid.
        """
        if len(body) > self._max_body_bytes or len(properties.text) > MAX_PROPERTIES_BYTES:
            raise self._illegal()  # a text that is too long only in UTF-8 is refused when it is stored
        if self._segments_are_small:
            self._check_fits(body, len(properties.text))
        message = InnerMessage(
            target.topic,
            queue.queue_id,
            body,
            properties.text,
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            connection.peer_bytes,
            header.reconsume_times or 0,
            tags_code=properties.tags_code,
            index_keys=properties.index_keys,
        )
        for detour in self._detours if properties.detour is not None else ():
            parked = detour(message, properties.detour or {})
            if parked is not None:
                if target.is_lite and self._turn.lite is not None:
                    self._turn.lite.check_later(message.topic, message.properties)
                message = parked
                break
        if properties.life is not None and not header.topic.startswith(RETRY_PREFIX):
            message = begin_life(message, properties.life, self._clock.now_ms(), self._live.current.delays_ms)
        handle = recall_handle(message, self._broker_name)
        is_fifo = self._traffic is not None and properties.detour is None and _SHARDED in message.properties
        stored = self._turn.put_message(message, FIFO if is_fifo else NORMAL)
        return stored.physical_offset, stored.queue_offset, handle

    def _illegal(self) -> RefusedError:
        return RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self._max_body_bytes}B, msg properties length limit 32KB.",
        )

    def _check_fits(self, body: bytes, properties_bytes: int) -> None:
        """Refuse a message that does not fit into one log file."""
        if len(body) + properties_bytes > self._max_stored_bytes:
            raise self._illegal()

    def _unpack_batch(self, header: SendHeader, body: bytes) -> bytes:
        """Decompress a batch, since the C++ client compresses large batches."""
        try:
            plain = decompress(body, header.sys_flag, self._max_body_bytes)
        except DecompressionError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        header.sys_flag &= ~(COMPRESSED | COMPRESSION_TYPE_MASK)
        return plain

    def _check_batch(self, header: SendHeader, body: bytes) -> tuple[bytes, str]:
        """Check a batch; return its decompressed body and the text to append to each message's properties."""
        if header.topic.startswith(RETRY_PREFIX):
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if len(body) > self._max_body_bytes:
            raise self._illegal()
        if header.sys_flag & COMPRESSED:
            body = self._unpack_batch(header, body)
        common = (header.properties or "").removesuffix(PROPERTY_SEPARATOR)
        read = read_properties(common, "")
        if header.sys_flag & _TRANSACTION_FLAGS or read.detour is not None:
            raise _no_detours()
        if read.life is not None:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: set the life time of each message in a batch, not that of the batch",
            )
        return body, f"{common}{PROPERTY_SEPARATOR}{self._cluster}" if common else self._cluster

    def _add_batch(
        self,
        connection: ServerConnection,
        request: Request[SendMessageRequestHeaderV2],
        target: SendTarget,
        queue: ConsumeQueue,
        body: bytes,
    ) -> bytes | ReadBatch:
        """Add a batch to the turn and return its log offsets, or return the batch if Python must store it.

        :raises PostponeError: the batch is large, and is read before its request is handled again.
        """
        header = request.header
        sequence = self._sequenced.cut_sequence(header)
        plain, tail = self._check_batch(header, body)
        if self._batches is not None:
            offsets = self._batches.add_batch(target, queue, header, plain, tail, connection.peer_bytes, sequence)
            if offsets is not None:
                return offsets
        batch = ReadBatch(plain, tail, sequence)
        if len(plain) > LARGE_BYTES:
            raise self._large.postpone(connection, request, batch)
        return batch

    def _records(
        self, connection: ServerConnection, target: SendTarget, header: SendHeader, batch: ReadBatch
    ) -> list[NewRecord]:
        """Return a batch's records."""
        records = []
        for piece, properties in batch.messages():
            text = properties.text
            if properties.life is not None:
                text = with_end(text, properties.life, self._clock.now_ms())
                if not target.has_life_times:
                    self._targets.note_life_times(target.topic)
            stored = text.encode()
            if len(stored) > MAX_PROPERTIES_BYTES:
                raise self._illegal()
            if self._segments_are_small:
                self._check_fits(piece.body, len(stored))
            if properties.detour is not None:
                raise _no_detours()
            records.append(
                NewRecord(
                    piece.body,
                    stored,
                    piece.flag,
                    header.sys_flag | target.sys_flag,
                    header.born_timestamp,
                    connection.peer_bytes,
                    self._store_host,
                    header.reconsume_times or 0,
                    0,
                    properties.tags_code,
                    properties.index_keys,
                )
            )
        return records

    def _put_records(
        self, target: SendTarget, queue: ConsumeQueue, records: list[NewRecord], sequence: ProducerSequence | None
    ) -> bytes:
        """Store the records of a batch one by one; return their log offsets as big-endian int64."""
        with self._turn.all_or_none():
            places = [self._turn.put(target, queue, record) for record in records]
            if sequence is not None:
                self._sequenced.put(sequence, queue, places[0])
        return packed_offsets([offset for offset, _ in places])


def _no_detours() -> RefusedError:
    return RefusedError(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: a batch does not support delayed or transactional messages, or lite topics",
    )
