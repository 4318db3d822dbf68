"""Delivers a task's chunks: a row selection decides which rows are sent, and the client's sender sends them.

While brokers store the chunks for some queues, the task encodes chunks for the next queues. Delivery adds three
features to :mod:`cometmq.client.blocking.outbox`, whose theory of operation also applies here:

* Before a chunk is sent, the selection removes the rows that an earlier attempt of the task has stored.
* After a failure, the selection decides which rows of the chunk are resent. :class:`RowSelection` itself
  resends all rows.
  :mod:`~cometmq.spark.sink.effectively_once` asks the broker which rows it has stored.
  :mod:`~cometmq.spark.sink.exactly_once` resends all rows, and the broker uses their numbers to drop those that it has
  already stored.
* A failing task first waits for the answers to its requests, since the next attempt immediately asks which rows are
  stored.

A task's commit message is created after ``finish``. At that point, every row has been acknowledged, or was skipped
because it is already stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cometmq.client.blocking.cluster import ANSWER_SECONDS
from cometmq.client.blocking.outbox import SenderOptions
from cometmq.client.blocking.sender import Sender
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.encoding import SendEncoder
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.compression import pack
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.spark.errors import SinkError
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.encoding import decode_piece
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk, Routes, WriteRoute

_TOO_LARGE: Final = "options maxMessageSize and maxBatchBytes must not exceed the maxMessageSize there"


class RowSelection:
    """Decides which rows of a repeated task are sent. A selection receives each queue's rows in order.

    This class guarantees at-least-once delivery: it sends all rows, and resends them if a result is unknown.
    """

    def choose_queues(self, _topic: str, route: WriteRoute) -> WriteRoute:
        """Return the queues to use for a topic: the current queues, or those of the task's first attempt."""
        return route

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """Return the part of a chunk to send, or None if the entire chunk is already stored."""
        return chunk

    def properties(self, _chunk: Chunk) -> str:
        """Return the properties of the request that sends the part returned by :meth:`unsent`."""
        return ""

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """Return the part of a chunk to resend if the first request's result is unknown."""
        return chunk

    def finish(self) -> None:
        """Perform the final checks after the last row."""


class Delivery(Sender):
    """Sends the chunks of one task. ``close`` must be called at the end."""

    def __init__(
        self, options: SinkOptions, routes: Routes, selection: RowSelection, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        security = options.access.security()
        super().__init__(
            SenderOptions(
                security,
                timeout_s=options.send_timeout_s,
                answer_s=min(ANSWER_SECONDS, options.send_timeout_s),
                error=SinkError,
                too_large=_TOO_LARGE,
                too_late="check that the broker is healthy, or raise option sendTimeoutMs",
            ),
            routes.address_of,
            clock=clock,
        )
        producer = ProducerConfig(max_message_bytes=options.max_message_size)
        self._encoder = SendEncoder(options.producer_group, producer, security.credentials)
        self._compression, self._compress_over = options.compression, options.compress_over
        self._now_ms = clock.now_ms
        self.selection = selection
        self.already_stored = 0
        """Number of messages that an earlier attempt had already stored."""

    def deliver(self, chunk: Chunk) -> None:
        """After the queue's previous chunk is acknowledged, send the part of this chunk that the selection chooses.

        :raises SinkError: a broker rejected messages, or did not acknowledge some of them in time.
        """
        self.wait_for(chunk.queue)
        unsent = self.selection.unsent(chunk)
        self.already_stored += len(chunk) - (0 if unsent is None else len(unsent))
        if unsent is not None:
            self.submit(_ChunkRequest(self, unsent, self.selection.properties(unsent)))

    def frame(self, chunk: Chunk, properties: str, opaque: int) -> bytes:
        """Encode a chunk as one request."""
        queue, now_ms = MessageQueue(*chunk.queue), self._now_ms()
        if not chunk.alone:
            code = RequestCode.SEND_BATCH_MESSAGE
            return self._encoder.frame(code, queue, opaque, chunk.pieces, properties, 0, 0, now_ms)
        flag, body, own_properties = decode_piece(bytes(chunk.pieces))
        sys_flag = 0
        if self._compression is not None and len(body) > self._compress_over:
            body, sys_flag = pack(body, self._compression)
        code = RequestCode.SEND_MESSAGE_V2
        return self._encoder.frame(code, queue, opaque, body, own_properties, sys_flag, flag, now_ms)


@dataclass(frozen=True, slots=True)
class _ChunkRequest:
    """A chunk, in the form that the client's sender needs."""

    delivery: Delivery
    chunk: Chunk
    properties: str

    @property
    def queue(self) -> Queue:
        return self.chunk.queue

    @property
    def size(self) -> int:
        return len(self.chunk.pieces)

    def __len__(self) -> int:
        return len(self.chunk)

    def __str__(self) -> str:
        rows = self.chunk.rows
        return f"{len(rows)} messages to {self.queue} (rows {rows[0]} to {rows[-1]} of the partition)"

    def frame(self, opaque: int) -> bytes:
        return self.delivery.frame(self.chunk, self.properties, opaque)

    def left(self) -> _ChunkRequest | None:
        unsent = self.delivery.selection.still_unsent(self.chunk)
        return None if unsent is None else replace(self, chunk=unsent)

    def acknowledged(self, answer: RemotingCommand) -> None:
        pass
