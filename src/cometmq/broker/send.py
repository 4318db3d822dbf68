"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) (``SendMessageProcessor``; hot path).

A request is checked and puts its record into the turn under way (:mod:`cometmq.broker.store_turn`), which
stores the records of all requests together and answers them. A message whose properties say that it has
to wait is parked by the first detour that takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cometmq.broker.answers import PendingSend, SendAnswers
from cometmq.broker.inner_message import Detour, InnerMessage
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.recall import recall_handle
from cometmq.broker.send_properties import SendProperties, read_properties
from cometmq.broker.send_targets import SendHeader, SendRefusedError, SendTarget, SendTargets
from cometmq.broker.sequenced_sends import SequencedSends
from cometmq.broker.store_turn import StoreTurn
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.batch import BatchError, BatchPiece, decode_batch
from cometmq.message.compression import DecompressionError, decompress
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import CLUSTER, PROPERTY_SEPARATOR
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK, TRANSACTION_ROLLBACK
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY
from cometmq.remoting.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore, TopicQueue

_TRANSACTION_FLAGS: Final = TRANSACTION_ROLLBACK
"""Both bits of a message that belongs to a transaction."""

BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


class SendMessageProcessor:
    """Takes messages in; see the module's docstring.

    ``detours`` are asked in their order about every message with a property of theirs.
    """

    def __init__(
        self,
        live: LiveConfig,
        targets: SendTargets,
        store: MessageStore,
        turn: StoreTurn,
        answers: SendAnswers,
        sequenced: SequencedSends,
        detours: Sequence[Detour] = (),
    ) -> None:
        self._live = live
        self._targets = targets
        self._known = targets.known
        self._store = store
        self._turn = turn
        self._answers = answers
        self._sequenced = sequenced
        self._detours = detours
        self._cluster = f"{CLUSTER}\x01{live.current.broker_cluster_name}"
        self._broker_name = live.current.broker_name
        self._max_body_bytes = live.current.max_message_size
        self._max_stored_bytes = turn.max_stored_bytes
        self._segments_are_small = self._max_stored_bytes < self._max_body_bytes + MAX_PROPERTIES_BYTES

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of sends."""
        processors.register(RequestCode.SEND_MESSAGE, SendMessageRequestHeader, self.send)
        processors.register(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2, self.send)
        processors.register(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestHeaderV2, self.send_batch)

    # --- requests -----------------------------------------------------------------------------
    def send(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Put one message; it is answered at the end of the turn, or later with SYNC_FLUSH."""
        header = request.header
        if header.batch:
            return self.send_batch(connection, request, body)
        try:
            target = self._target(connection, header)
            queue = self._queue(connection, target, header)
            queue_id = queue.queue_id
            if target.is_retry:
                target, queue = self._after_retries(target, queue, request)
            properties = read_properties(header.properties or "", self._cluster)
            handle: str | None = None
            if len(body) > self._max_body_bytes or len(properties.stored) > MAX_PROPERTIES_BYTES:
                raise self._illegal()
            if self._segments_are_small:
                self._check_fits(body, properties)
            if properties.detour is not None:
                physical_offset, queue_offset, handle = self._put_detoured(
                    connection, target, queue, header, body, properties
                )
            else:
                physical_offset, queue_offset = self._turn.put(
                    target,
                    queue,
                    body,
                    properties,
                    header.flag,
                    header.sys_flag | target.sys_flag,
                    header.born_timestamp,
                    connection.peer_bytes,
                    header.reconsume_times or 0,
                )
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark, ext=self._answers.ext)
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

    def send_batch(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Put the messages of a batch into one queue, in their order; they get one answer."""
        header = request.header
        try:
            target = self._target(connection, header)
            queue = self._queue(connection, target, header)
            sequence = self._sequenced.take(header)
            pieces = self._read_batch(header, body)
            if sequence is not None:
                before = self._sequenced.stored_before(sequence, queue, pieces)
                if before is not None:
                    return before
            put, sys_flag, born_timestamp = self._turn.put, header.sys_flag | target.sys_flag, header.born_timestamp
            born_host, reconsume_times = connection.peer_bytes, header.reconsume_times or 0
            with self._turn.all_or_none():
                offsets = [
                    put(
                        target,
                        queue,
                        piece.body,
                        properties,
                        piece.flag,
                        sys_flag,
                        born_timestamp,
                        born_host,
                        reconsume_times,
                    )
                    for piece, properties in pieces
                ]
                if sequence is not None:
                    self._sequenced.put(sequence, queue, offsets[0])
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark, ext=self._answers.ext)
        if not request.flag & FLAG_ONEWAY or connection.hooked:
            physical_offset, queue_offset = offsets[0]
            self._turn.answer(
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
        self._turn.end_if_full()
        return None

    # --- one record ---------------------------------------------------------------------------
    def _target(self, connection: ServerConnection, header: SendHeader) -> SendTarget:
        """The topic of a send, once it is sure that messages can be taken now.

        :raises SendRefusedError: with code and words.
        """
        turn = self._turn
        if not turn.is_open:
            turn.begin()
        if turn.refusal is not None:
            raise turn.refusal
        if turn.waits and turn.waiters.full(connection):
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        return self._known.get(header.topic) or self._targets.resolve(header)

    def _queue(self, connection: ServerConnection, target: SendTarget, header: SendHeader) -> TopicQueue:
        """The queue that a message is sent to.

        :raises SendRefusedError: the topic has no such queue.
        """
        return target.queues.get(header.queue_id) or target.open_queue(header.queue_id, connection.remote_address)

    def _after_retries(
        self, target: SendTarget, queue: TopicQueue, request: Request[Any]
    ) -> tuple[SendTarget, TopicQueue]:
        """Where a message goes that a consumer sends to its retry topic.

        :raises SendRefusedError: it can go nowhere.
        """
        after = self._targets.after_retries(target, request.header, request.version)
        if after is target:
            return target, queue
        return after, after.queues.get(0) or after.open_queue(0, "")

    def _put_detoured(
        self,
        connection: ServerConnection,
        target: SendTarget,
        queue: TopicQueue,
        header: SendHeader,
        body: bytes,
        properties: SendProperties,
    ) -> tuple[int, int, str | None]:
        """Put a message that asks for a detour where the first one that takes it says.

        Returns its log offset, its queue offset, and what it can be recalled by.

        :raises SendRefusedError: it asks for what cannot be.
        """
        assert properties.detour is not None
        message = InnerMessage(
            target.topic,
            queue.queue_id,
            body,
            properties.stored.decode(),
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            connection.peer_bytes,
            header.reconsume_times or 0,
        )
        for detour in self._detours:
            parked = detour(message, properties.detour)
            if parked is not None:
                message = parked
                break
        handle = recall_handle(message, self._broker_name)
        stored = self._turn.put_message(message, properties)
        return stored.physical_offset, stored.queue_offset, handle

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
        if header.sys_flag & _TRANSACTION_FLAGS or read_properties(common, "").detour is not None:
            raise _no_detours()
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
            if properties.detour is not None:
                raise _no_detours()
        return pieces


def _no_detours() -> SendRefusedError:
    return SendRefusedError(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: a batch does not support delayed or transactional messages",
    )
