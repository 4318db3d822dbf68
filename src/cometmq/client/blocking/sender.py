"""Sends to several queues at once without an event loop, in the order of each queue, and sends again what failed.

A *request* is some messages of one queue. It is on its way (``opaque`` is set), or it pauses until ``due_at``, or it is
acknowledged and gone. The invariants:

* A queue has at most one request, on its way or in a pause, so a later request never overtakes an earlier one.
* All requests to a broker share one connection; its answers come in any order and are matched by their opaques.
* A request is given up only with an error: when its broker refuses it, or when the next try would begin after its
  deadline (``timeout_s`` after it was submitted).

Faults: a broker that answers "not now" (:data:`UNSURE`), says nothing in time or closes the connection leaves open
whether the messages are stored. All requests on a broken connection go into a pause of their own; each pause is twice
the last one, and pauses of several queues pass at the same time. After it the request itself says, by
:meth:`Request.left`, which messages are sent again: all, those that the broker does not find, or none. When the
connection broke, the nameserver is asked again for the broker's address.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cometmq.client.blocking.cluster import Queue
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_SINK_IN_FLIGHT_BYTES
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import denial_step
from cometmq.remoting.security import Security

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
UNSURE: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Codes that are worth another try: the message is not stored, or not as safely as the broker is set to store."""
_ADVICE: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "the topic or its broker does not allow writing: see cometmq topic list",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic on this broker: cometmq topic create",
    ResponseCode.PRODUCER_FENCED: "another attempt of this task has taken over, which goes on with it",
    ResponseCode.SEQUENCE_GAP: "the broker lost messages that it had acknowledged; the repeated task sends them again",
    ResponseCode.SEQUENCE_MISMATCH: "the rows of a repeated task must be the same, in the same order",
}


class Request(Protocol):
    """Messages of one queue that are sent together; its text names them in errors."""

    @property
    def queue(self) -> Queue:
        """The queue that the messages go to."""

    @property
    def size(self) -> int:
        """Bytes of the messages."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def frame(self, opaque: int) -> bytes:
        """Encode the request."""

    def left(self) -> Self | None:
        """Return what must be sent again after a failure; None if everything is stored."""

    def acknowledged(self, answer: RemotingCommand) -> None:
        """Take note that the broker has stored the messages."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Limits of a sender, and the words of its errors."""

    security: Security
    timeout_s: float
    """Time for a request to be acknowledged, all tries together."""
    answer_s: float
    """Time for one answer."""
    error: type[CometMQError]
    """Raised when a broker refuses messages or does not acknowledge them in time."""
    too_large: str
    """The next step when a broker takes a message for too large."""
    too_late: str
    """The next step when messages are not acknowledged in time."""
    first_pause_s: float = FIRST_PAUSE_SECONDS


@dataclass(slots=True)
class _Sending:
    """A request that is not acknowledged yet."""

    request: Request
    deadline: float
    opaque: int | None = None
    """The number (opaque) of the frame on its way; None in a pause."""
    pause_s: float = 0.0
    """The current pause, or the last one."""
    due_at: float = 0.0
    """The end of the pause."""


@dataclass(slots=True)
class Delivered:
    """Sums over a sender's requests."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    repeated: int = 0
    """Requests that were sent again."""


class Sender:
    """Sends requests; ``close`` must be called at the end.

    :param address_of: finds the address of a queue's master; its second argument is True when the known address did
        not answer.
    """

    def __init__(
        self, options: SenderOptions, address_of: Callable[[Queue, bool], str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._options = options
        self._address_of = address_of
        self._clock = clock
        self._opaques = itertools.count(1)
        self._connections: dict[str, BlockingConnection] = {}
        self._moved: set[str] = set()
        """Brokers whose connection broke: they may have moved to another address."""
        self._in_flight: dict[Queue, _Sending] = {}
        self._bytes = 0
        self.delivered = Delivered()

    def wait_for(self, queue: Queue) -> None:
        """Wait until a queue has no request under way.

        :raises CometMQError: ``options.error``, see :meth:`submit`.
        """
        while queue in self._in_flight:
            self._go_on_with(queue)

    def submit(self, request: Request) -> None:
        """Send a request once the one before it in its queue is acknowledged.

        :raises CometMQError: ``options.error``: a broker refuses messages, or did not acknowledge some in time.
        """
        self.wait_for(request.queue)
        while self._in_flight and self._bytes + request.size > MAX_SINK_IN_FLIGHT_BYTES:
            self._go_on_with(next(iter(self._in_flight)))
        self._take(_Sending(request, self._clock.monotonic() + self._options.timeout_s))
        self._send_due()

    def finish(self) -> Delivered:
        """Wait until everything is acknowledged.

        :raises CometMQError: ``options.error``, see :meth:`submit`.
        """
        while self._in_flight:
            self._go_on_with(next(iter(self._in_flight)))
        return self.delivered

    def settle(self) -> None:
        """Wait a while for the answers to sent requests, good or bad, before the task fails.

        A repeated attempt asks at once which messages are stored; those stored after that question are stored twice.
        """
        give_up_at = self._clock.monotonic() + self._options.answer_s
        for broker, connection in self._connections.items():
            open_ = {of.opaque for of in self._sendings_to(broker) if of.opaque is not None}
            with suppress(BlockingConnectionError):
                while open_ and (left_s := give_up_at - self._clock.monotonic()) > 0:
                    open_.discard(connection.receive(left_s).opaque)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Sending --------------------------------------------------------------------------------------

    def _sendings_to(self, broker: str) -> list[_Sending]:
        return [sending for sending in self._in_flight.values() if sending.request.queue.broker == broker]

    def _go_on_with(self, queue: Queue) -> None:
        """Take in an answer of the queue's broker, or wait for the end of a pause; then send what is due."""
        if any(of.opaque is not None for of in self._sendings_to(queue.broker)):
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
        if sending.pause_s and not self._is_left(sending):
            return
        queue = sending.request.queue
        try:
            connection = self._connection(queue)
            sending.opaque = opaque = next(self._opaques)
            connection.send(sending.request.frame(opaque))
            self.delivered.requests += 1
        except CometMQError as error:  # also the nameserver's answer about a broker that is away
            self._broken(queue.broker, error.message)

    def _is_left(self, sending: _Sending) -> bool:
        """Reduce a request that was sent before to what must be sent again; tell whether that is anything."""
        self._take_back(sending)
        left = sending.request.left()
        self.delivered.messages += len(sending.request) - (0 if left is None else len(left))
        if left is None:
            return False
        sending.request = left
        self._take(sending)
        self.delivered.repeated += 1
        return True

    def _connection(self, queue: Queue) -> BlockingConnection:
        connection = self._connections.get(queue.broker)
        if connection is None:
            address = self._address_of(queue, queue.broker in self._moved)
            connection = BlockingConnection(address, self._options.answer_s, self._options.security)
            self._connections[queue.broker] = connection
            self._moved.discard(queue.broker)
        return connection

    # Answers --------------------------------------------------------------------------------------

    def _collect(self, broker: str) -> None:
        try:
            answer = self._connections[broker].receive()
        except BlockingConnectionError as error:
            self._broken(broker, error.message)
        else:
            self._answered(broker, answer)

    def _answered(self, broker: str, answer: RemotingCommand) -> None:
        sending = next((of for of in self._sendings_to(broker) if of.opaque == answer.opaque), None)
        if sending is None or not answer.is_response:
            return  # a request of the broker's, or an answer to a request that was given up
        words = f"code {answer.code}: {answer.remark or 'no remark'}"
        if answer.code in UNSURE:
            self._again([sending], f"broker {broker} answers {words}")
            return
        self._take_back(sending)
        if answer.code != ResponseCode.SUCCESS:
            raise self._options.error(
                f"broker {broker} refuses {sending.request}: {words}",
                next_step=self._options.too_large
                if answer.code == ResponseCode.MESSAGE_ILLEGAL
                else denial_step(answer.code, answer.remark) or _ADVICE.get(answer.code),
            )
        self.delivered.messages += len(sending.request)
        self.delivered.bytes += sending.request.size
        sending.request.acknowledged(answer)

    def _take(self, sending: _Sending) -> None:
        self._in_flight[sending.request.queue] = sending
        self._bytes += sending.request.size

    def _take_back(self, sending: _Sending) -> None:
        del self._in_flight[sending.request.queue]
        self._bytes -= sending.request.size

    def _broken(self, broker: str, reason: str) -> None:
        """Drop a connection: the fate of every request on it is unknown."""
        connection = self._connections.pop(broker, None)
        if connection is not None:
            connection.close()
        self._moved.add(broker)
        self._again(self._sendings_to(broker), f"broker {broker} does not answer: {reason}")

    def _again(self, sendings: list[_Sending], reason: str) -> None:
        """Let requests pause before they are sent again, each twice as long as the last time."""
        now = self._clock.monotonic()
        for sending in sendings:
            sending.opaque = None
            sending.pause_s = min(max(2 * sending.pause_s, self._options.first_pause_s), LONGEST_PAUSE_SECONDS)
            sending.due_at = now + sending.pause_s
            if sending.due_at > sending.deadline:
                raise self._options.error(
                    f"{sending.request}: not acknowledged within {self._options.timeout_s * 1000:.0f} ms; {reason}",
                    next_step=self._options.too_late,
                )
