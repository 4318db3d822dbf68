"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) (``SendMessageProcessor``; hot path).

Everything is done once per turn of the loop: a request only puts its record into the store's buffer
and remembers who asked; at the end of the turn one write stores the records of all requests, and only
then are all of them answered. With SYNC_FLUSH the answers wait for the flush that covers the write.
A write that fails stores nothing of the turn, and every request of it is told so.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from cometmq.broker.answers import PendingSend, SendAnswers
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.send_flush import FlushWaiters
from cometmq.broker.send_properties import SendProperties, read_properties
from cometmq.broker.send_targets import SendHeader, SendRefusedError, SendTarget, SendTargets
from cometmq.broker.stats import BrokerStats
from cometmq.clock import Clock
from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS, MAX_TURN_BYTES
from cometmq.message.batch import BatchError, BatchPiece, decode_batch
from cometmq.message.compression import DecompressionError, decompress
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import CLUSTER, PROPERTY_SEPARATOR
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.message.sysflag import BORNHOST_V6, COMPRESSED, COMPRESSION_TYPE_MASK, STOREHOST_V6
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY
from cometmq.remoting.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore, TopicQueue
from cometmq.store.record_scan import NO_QUEUE_OFFSET

_log = logging.getLogger(__name__)

BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_HOST_FLAGS: Final = BORNHOST_V6 | STOREHOST_V6

_MAX_OVERHEAD_BYTES: Final = MIN_RECORD_BYTES + 2 * (IPV6_HOST_BYTES - IPV4_HOST_BYTES) + MAX_TOPIC_CHARS + 8
"""What a record adds to body and properties at most, and the filler that must fit behind it."""


class SendMessageProcessor:
    """Takes messages in; see the module's docstring.

    ``end_turn`` must be called at the end of every turn of the loop.
    """

    def __init__(
        self,
        live: LiveConfig,
        targets: SendTargets,
        store: MessageStore,
        stats: BrokerStats,
        answers: SendAnswers,
        store_host: bytes,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._targets = targets
        self._known = targets.known
        self._store = store
        self._stats = stats
        self._answers = answers
        self._clock = clock
        self._store_host = store_host
        self._host_flags = STOREHOST_V6 if len(store_host) == IPV6_HOST_BYTES else 0
        self._cluster = f"{CLUSTER}\x01{live.current.broker_cluster_name}"
        self._max_body_bytes = live.current.max_message_size
        self._max_stored_bytes = live.current.mapped_file_size_commit_log - _MAX_OVERHEAD_BYTES
        self._segments_are_small = self._max_stored_bytes < self._max_body_bytes + MAX_PROPERTIES_BYTES
        self._waiters = FlushWaiters(store, answers, clock=clock, timeout_s=live.current.sync_flush_timeout / 1000)
        self._pending: list[PendingSend] = []
        self._touched: list[SendTarget] = []
        self._turn_bytes = 0
        self._turn_open = False
        self._turn_began_ms = 0
        self._refusal: SendRefusedError | None = None
        self._stopping = False

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of sends."""
        processors.register(RequestCode.SEND_MESSAGE, SendMessageRequestHeader, self.send)
        processors.register(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2, self.send)
        processors.register(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestHeaderV2, self.send_batch)

    def stop(self) -> None:
        """Refuse every send from now on; what is put already is still stored and answered."""
        self._stopping = True
        self._turn_open = False

    async def finished(self) -> None:
        """Wait until every send taken in is answered."""
        await self._waiters.finished()

    # --- requests -----------------------------------------------------------------------------
    def send(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Put one message; it is answered at the end of the turn, or later with SYNC_FLUSH."""
        header = request.header
        if header.batch:
            return self.send_batch(connection, request, body)
        try:
            target = self._target(connection, header)
            queue = self._queue(connection, target, header)
            properties = read_properties(header.properties or "", self._cluster)
            if len(body) > self._max_body_bytes or len(properties.stored) > MAX_PROPERTIES_BYTES:
                raise self._illegal()
            if self._segments_are_small:
                self._check_fits(body, properties)
            if properties.delay:
                _check_delay(properties.delay)
            physical_offset, queue_offset = self._put(connection, target, queue, header, header.flag, body, properties)
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark, ext=self._answers.ext)
        if not request.flag & FLAG_ONEWAY:
            self._pending.append(
                PendingSend(
                    connection,
                    request,
                    queue.queue_id,
                    queue_offset,
                    physical_offset,
                    properties.wait,
                    len(body),
                )
            )
        if self._turn_bytes > MAX_TURN_BYTES:
            self.end_turn()
        return None

    def send_batch(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Put the messages of a batch into one queue, in their order; they get one answer."""
        header = request.header
        try:
            target = self._target(connection, header)
            queue = self._queue(connection, target, header)
            pieces = self._read_batch(header, body)
            offsets = [
                self._put(connection, target, queue, header, piece.flag, piece.body, properties)
                for piece, properties in pieces
            ]
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark, ext=self._answers.ext)
        if not request.flag & FLAG_ONEWAY:
            physical_offset, queue_offset = offsets[0]
            self._pending.append(
                PendingSend(
                    connection,
                    request,
                    queue.queue_id,
                    queue_offset,
                    physical_offset,
                    read_properties(header.properties or "", "").wait,
                    len(body),
                    tuple(offset for offset, _ in offsets),
                )
            )
        if self._turn_bytes > MAX_TURN_BYTES:
            self.end_turn()
        return None

    # --- one record ---------------------------------------------------------------------------
    def _target(self, connection: ServerConnection, header: SendHeader) -> SendTarget:
        """The topic of a send, once it is sure that messages can be taken now.

        :raises SendRefusedError: with code and words.
        """
        if not self._turn_open:
            self._begin_turn()
        if self._refusal is not None:
            raise self._refusal
        if self._store.sync_flush and self._waiters.full(connection):
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        return self._known.get(header.topic) or self._targets.resolve(header)

    def _queue(self, connection: ServerConnection, target: SendTarget, header: SendHeader) -> TopicQueue:
        """The queue that a message is stored in: the one that it is sent to.

        This is the one place that decides it; a message that has to wait would be parked in another
        topic's queue here.

        :raises SendRefusedError: the topic has no such queue.
        """
        return target.queues.get(header.queue_id) or target.open_queue(header.queue_id, connection.remote_address)

    def _put(
        self,
        connection: ServerConnection,
        target: SendTarget,
        queue: TopicQueue,
        header: SendHeader,
        flag: int,
        body: bytes,
        properties: SendProperties,
    ) -> tuple[int, int]:
        """Put one record into the store's buffer; return its log offset and queue offset."""
        peer = connection.peer_bytes
        sys_flag = header.sys_flag & ~_HOST_FLAGS | self._host_flags | target.sys_flag
        if len(peer) == IPV6_HOST_BYTES:
            sys_flag |= BORNHOST_V6
        physical_offset = self._store.put(
            queue,
            body,
            properties.stored,
            flag,
            sys_flag,
            header.born_timestamp,
            peer,
            self._store_host,
            header.reconsume_times or 0,
            0,
            properties.tags_code,
            properties.index_keys,
        )
        size = len(body) + len(properties.stored) + len(target.topic) + MIN_RECORD_BYTES
        if not target.messages:
            self._touched.append(target)
        target.messages += 1
        target.size_bytes += size
        self._turn_bytes += size
        return physical_offset, 0 if sys_flag & NO_QUEUE_OFFSET else queue.next_offset - 1

    def _illegal(self) -> SendRefusedError:
        return SendRefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self._max_body_bytes}B, msg properties length limit 32KB.",
        )

    def _check_fits(self, body: bytes, properties: SendProperties) -> None:
        """Refuse what does not fit into one log file, where those are smaller than the largest message."""
        if len(body) + len(properties.stored) > self._max_stored_bytes:
            raise self._illegal()

    def _unpack_batch(self, header: SendHeader, body: bytes) -> bytes:
        """The C++ client packs a large batch as a whole; its messages are stored as they are, unpacked."""
        try:
            plain = decompress(body, header.sys_flag, self._max_body_bytes)
        except DecompressionError as error:
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        header.sys_flag &= ~(COMPRESSED | COMPRESSION_TYPE_MASK)
        return plain

    def _read_batch(self, header: SendHeader, body: bytes) -> list[tuple[BatchPiece, SendProperties]]:
        """The messages of a batch with their properties, those of the batch itself appended."""
        if header.topic.startswith(RETRY_PREFIX):
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if len(body) > self._max_body_bytes:
            raise self._illegal()
        if header.sys_flag & COMPRESSED:
            body = self._unpack_batch(header, body)
        common = (header.properties or "").removesuffix(PROPERTY_SEPARATOR)
        tail = f"{common}{PROPERTY_SEPARATOR}{self._cluster}" if common else self._cluster
        try:
            pieces = [(piece, read_properties(piece.properties_text, tail)) for piece in decode_batch(body)]
        except BatchError as error:
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        if not pieces:
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: the batch holds no message")
        for piece, properties in pieces:
            if len(properties.stored) > MAX_PROPERTIES_BYTES:
                raise self._illegal()
            if self._segments_are_small:
                self._check_fits(piece.body, properties)
            if properties.delay:
                raise SendRefusedError(
                    ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: a batch does not support delayed messages"
                )
        return pieces

    # --- turns --------------------------------------------------------------------------------
    def _begin_turn(self) -> None:
        """The first send of a turn: find out whether messages can be taken now."""
        self._turn_open = True
        self._turn_began_ms = self._clock.now_ms()
        error = self._store.writable()
        if self._stopping:
            self._refusal = SendRefusedError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker is shutting down"
            )
        elif error is not None:
            self._refusal = _not_available(error)
        else:
            self._refusal = None

    def end_turn(self) -> None:
        """Store what the turn put and answer, or let the answers wait for the flush."""
        self._turn_open = False
        touched = self._touched
        if not touched:
            return
        pending = self._pending
        self._pending = []
        self._touched = []
        self._turn_bytes = 0
        try:
            self._targets.save_topics()
            position = self._store.commit()
        except SendRefusedError as refusal:
            self._store.rollback()
            self._failed(refusal, touched, pending)
            return
        except StoreError as error:
            self._failed(_not_available(error), touched, pending)
            return
        stats = self._stats
        messages = 0
        for target in touched:
            stats.put(target.topic, target.messages, target.size_bytes)
            messages += target.messages
            target.messages = 0
            target.size_bytes = 0
        stats.put_took(self._clock.now_ms() - self._turn_began_ms, messages)
        if self._store.sync_flush:
            self._waiters.add(position, [send for send in pending if send.wait])
            pending = [send for send in pending if not send.wait]
        self._answers.stored(pending)

    def _failed(self, refusal: SendRefusedError, touched: list[SendTarget], pending: list[PendingSend]) -> None:
        messages = sum(target.messages for target in touched)
        for target in touched:
            target.messages = 0
            target.size_bytes = 0
        self._stats.put_failed += messages
        _log.error("%d messages of one turn are not stored: %s", messages, refusal.remark)
        self._answers.refused(refusal.code, refusal.remark, pending)


def _not_available(error: StoreError) -> SendRefusedError:
    return SendRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")


def _check_delay(text: str) -> None:
    """DELAY must be a whole number; what cannot be one is refused in Java's words."""
    try:
        int(text)
    except ValueError:
        raise SendRefusedError(
            ResponseCode.SYSTEM_ERROR, f'java.lang.NumberFormatException: For input string: "{text}"'
        ) from None
