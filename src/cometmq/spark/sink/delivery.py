"""Chunks on their way: at most one in each queue, so that order is kept; what fails for a while is sent again.

While the brokers store the chunks of some queues, the task encodes those of the next. A broker that is busy
(flow control) or away slows the task down: its chunks are sent again, each after pauses of its own that double, until
one has waited for ``sendTimeoutMs``. Pauses of several queues pass at the same time.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cometmq.client.send_encoding import SendEncoder
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_SINK_IN_FLIGHT_BYTES
from cometmq.message.compression import DEFAULT_LEVEL, compress
from cometmq.message.sysflag import CompressionType, with_compression
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.spark.errors import SinkError
from cometmq.spark.queues import Queue
from cometmq.spark.sink.answers import UNSURE, next_step, told
from cometmq.spark.sink.encoding import take_apart
from cometmq.spark.sink.guards import Guard
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk
from cometmq.spark.sink.routes import ANSWER_SECONDS, Routes

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
_TOO_LARGE: Final = "options maxMessageSize and maxBatchBytes must not exceed the maxMessageSize there"


@dataclass(slots=True)
class _Sending:
    """A chunk that is not acknowledged yet."""

    chunk: Chunk
    properties: str
    deadline: float
    opaque: int | None = None
    """Of the request that is on its way; none while it waits to be sent, or to be sent again."""
    pause_s: float = 0.0
    """How long it waited, or waits, before it is sent again."""
    due_at: float = 0.0
    """When that is over."""


@dataclass(slots=True)
class Delivered:
    """What a task has delivered."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    repeated: int = 0
    """Requests that were sent again."""
    passed_over: int = 0
    """Messages that an earlier attempt had stored."""


class Delivery:
    """Sends the chunks of one task; ``close`` must be called at the end."""

    def __init__(self, options: SinkOptions, routes: Routes, guard: Guard, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._routes = routes
        self._guard = guard
        self._clock = clock
        self._security = options.access.security()
        group, largest, credentials = options.producer_group, options.max_message_size, self._security.credentials
        self._encoder = SendEncoder(group, 4, largest, 0, CompressionType.ZLIB, 0, credentials)
        self._answer_s = min(ANSWER_SECONDS, options.send_timeout_s)
        self._opaques = itertools.count(1)
        self._connections: dict[str, BlockingConnection] = {}
        self._moved: set[str] = set()
        self._in_flight: dict[Queue, _Sending] = {}
        self._bytes = 0
        self.delivered = Delivered()

    def submit(self, chunk: Chunk) -> None:
        """Send a chunk once the one before it in its queue is acknowledged.

        :raises SinkError: a broker refuses messages, or did not acknowledge some in time.
        """
        while chunk.queue in self._in_flight:
            self._go_on_with(chunk.queue)
        unsent = self._guard.unsent(chunk)
        self.delivered.passed_over += len(chunk) - (0 if unsent is None else len(unsent))
        if unsent is None:
            return
        properties = self._guard.properties(unsent)
        self._submit(_Sending(unsent, properties, self._clock.monotonic() + self._options.send_timeout_s))

    def _submit(self, sending: _Sending) -> None:
        chunk = sending.chunk
        while self._in_flight and self._bytes + len(chunk.pieces) > MAX_SINK_IN_FLIGHT_BYTES:
            self._go_on_with(next(iter(self._in_flight)))
        self._take(sending)
        self._send_due()

    def finish(self) -> Delivered:
        """Wait until everything is acknowledged.

        :raises SinkError: as :meth:`submit`.
        """
        while self._in_flight:
            self._go_on_with(next(iter(self._in_flight)))
        return self.delivered

    def settle(self) -> None:
        """Wait a while for the answers to what was sent, whatever they are, before the task fails.

        A repeated attempt asks at once what is stored; what is stored after that is there twice.
        """
        give_up_at = self._clock.monotonic() + self._answer_s
        for broker, connection in self._connections.items():
            sent = [sending for sending in self._in_flight.values() if sending.chunk.queue.broker == broker]
            open_ = {sending.opaque for sending in sent if sending.opaque is not None}
            with suppress(BlockingConnectionError):
                while open_ and (left_s := give_up_at - self._clock.monotonic()) > 0:
                    open_.discard(connection.receive(left_s).opaque)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Sending --------------------------------------------------------------------------------------

    def _go_on_with(self, queue: Queue) -> None:
        """Take in an answer of the queue's broker, or let a pause pass where none is to come; then send what is due."""
        if any(of.opaque is not None for of in self._in_flight.values() if of.chunk.queue.broker == queue.broker):
            self._collect(queue.broker)
        else:
            threading.Event().wait(max(self._in_flight[queue].due_at - self._clock.monotonic(), 0.0))
        self._send_due()

    def _send_due(self) -> None:
        now = self._clock.monotonic()
        for sending in list(self._in_flight.values()):
            if sending.opaque is None and sending.due_at <= now:
                self._send(sending)

    def _send(self, sending: _Sending) -> None:
        queue = sending.chunk.queue
        if sending.pause_s and not self._is_left(sending):
            return
        try:
            connection = self._connection(queue)
            sending.opaque = opaque = next(self._opaques)
            connection.send(self._frame(sending, opaque))
            self.delivered.requests += 1
        except CometMQError as error:  # also what a nameserver says of a broker that is away
            self._broken(queue.broker, error.message)

    def _is_left(self, sending: _Sending) -> bool:
        """Whether something of a chunk that was sent before must be sent again: that is then what is left of it."""
        self._take_back(sending)
        unsent = self._guard.still_unsent(sending.chunk)
        self.delivered.messages += len(sending.chunk) - (0 if unsent is None else len(unsent))
        if unsent is None:
            return False
        sending.chunk = unsent
        self._take(sending)
        self.delivered.repeated += 1
        return True

    def _connection(self, queue: Queue) -> BlockingConnection:
        connection = self._connections.get(queue.broker)
        if connection is None:
            address = self._routes.address_of(queue, again=queue.broker in self._moved)
            connection = self._connections[queue.broker] = BlockingConnection(address, self._answer_s, self._security)
            self._moved.discard(queue.broker)
        return connection

    def _frame(self, sending: _Sending, opaque: int) -> bytes:
        chunk = sending.chunk
        queue = MessageQueue(*chunk.queue)
        now = self._clock.now_ms()
        if not chunk.alone:
            code = RequestCode.SEND_BATCH_MESSAGE
            return self._encoder.frame(code, queue, opaque, bytes(chunk.pieces), sending.properties, 0, 0, now)
        flag, body, properties = take_apart(bytes(chunk.pieces))
        sys_flag = 0
        if self._options.compression is not None and len(body) > self._options.compress_over:
            body = compress(body, self._options.compression, DEFAULT_LEVEL)
            sys_flag = with_compression(0, self._options.compression)
        code = RequestCode.SEND_MESSAGE_V2
        return self._encoder.frame(code, queue, opaque, body, properties, sys_flag, flag, now)

    # Answers --------------------------------------------------------------------------------------

    def _collect(self, broker: str) -> None:
        """Take in one answer of a broker."""
        try:
            answer = self._connections[broker].receive()
        except BlockingConnectionError as error:
            self._broken(broker, error.message)
        else:
            self._answered(broker, answer)

    def _answered(self, broker: str, answer: RemotingCommand) -> None:
        sending = next((s for s in self._in_flight.values() if s.opaque == answer.opaque), None)
        if sending is None or not answer.is_response or sending.chunk.queue.broker != broker:
            return  # a request of the broker's, or an answer to what was given up
        if answer.code in UNSURE:
            self._again([sending], f"broker {broker} answers {told(answer)}")
            return
        self._take_back(sending)
        chunk = sending.chunk
        if answer.code == ResponseCode.SUCCESS:
            self.delivered.messages += len(chunk)
            self.delivered.bytes += len(chunk.pieces)
        else:
            raise SinkError(
                f"broker {broker} refuses {_named(chunk)}: {told(answer)}",
                next_step=next_step(answer, too_large=_TOO_LARGE),
            )

    def _take(self, sending: _Sending) -> None:
        self._in_flight[sending.chunk.queue] = sending
        self._bytes += len(sending.chunk.pieces)

    def _take_back(self, sending: _Sending) -> None:
        del self._in_flight[sending.chunk.queue]
        self._bytes -= len(sending.chunk.pieces)

    def _broken(self, broker: str, reason: str) -> None:
        """The connection is of no more use: nobody knows what the broker did with what was sent on it."""
        connection = self._connections.pop(broker, None)
        if connection is not None:
            connection.close()
        self._moved.add(broker)
        unsure = [sending for sending in self._in_flight.values() if sending.chunk.queue.broker == broker]
        self._again(unsure, f"broker {broker} does not answer: {reason}")

    def _again(self, sendings: list[_Sending], reason: str) -> None:
        """Let them be sent again after a pause, twice as long as the last one of each."""
        now = self._clock.monotonic()
        for sending in sendings:
            sending.opaque = None
            sending.pause_s = min(max(2 * sending.pause_s, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            sending.due_at = now + sending.pause_s
            if sending.due_at > sending.deadline:
                raise SinkError(
                    f"{_named(sending.chunk)}: not acknowledged within {self._options.send_timeout_ms} ms; {reason}",
                    next_step="is the broker healthy? option sendTimeoutMs waits longer",
                )


def _named(chunk: Chunk) -> str:
    return f"{len(chunk)} messages to {chunk.queue} (rows {chunk.rows[0]} to {chunk.rows[-1]} of the partition)"
