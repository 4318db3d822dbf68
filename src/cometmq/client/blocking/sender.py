"""Sends the requests in an :class:`~cometmq.client.blocking.outbox.Outbox` over blocking connections.

All requests to a broker share one connection; its answers arrive in any order and are matched by opaque. When a
connection breaks, the nameserver is asked again for the broker's address.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from cometmq.client.blocking.outbox import Delivered, Outbox, Request, SenderOptions, Sending
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_SINK_IN_FLIGHT_BYTES
from cometmq.message.queues import Queue
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError


class Sender:
    """Sends requests; ``close`` must be called at the end.

    Its methods raise ``options.error`` if a broker refuses messages, or does not acknowledge them in time.

    :param address_of: returns the address of a queue's master; its second argument is True if the known address did
        not answer.
    """

    def __init__(
        self, options: SenderOptions, address_of: Callable[[Queue, bool], str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._options = options
        self._address_of = address_of
        self._clock = clock
        self._outbox = Outbox(options)
        self._connections: dict[str, BlockingConnection] = {}
        self._moved: set[str] = set()
        """Brokers whose connection was lost, so their address may have changed."""

    def wait_for(self, queue: Queue) -> None:
        """Wait until a queue has no unacknowledged request."""
        while queue in self._outbox.sendings:
            self._advance(queue)

    def submit(self, request: Request) -> None:
        """Send a request after the previous request for its queue has been acknowledged."""
        self.wait_for(request.queue)
        while self._outbox.sendings and self._outbox.bytes + request.size > MAX_SINK_IN_FLIGHT_BYTES:
            self._advance(next(iter(self._outbox.sendings)))
        self._outbox.add(request, self._clock.monotonic())
        self._send_due()

    def finish(self) -> Delivered:
        """Wait until all requests have been acknowledged."""
        while self._outbox.sendings:
            self._advance(next(iter(self._outbox.sendings)))
        return self._outbox.delivered

    def await_answers(self) -> None:
        """Wait briefly for the responses to sent requests before the task fails.

        The task's next attempt first queries which messages are stored; messages stored after this query are then
        stored twice.
        """
        give_up_at = self._clock.monotonic() + self._options.answer_s
        for broker, connection in self._connections.items():
            unanswered = self._outbox.unanswered_by(broker)
            with suppress(BlockingConnectionError):
                while unanswered and (left_s := give_up_at - self._clock.monotonic()) > 0:
                    unanswered.discard(connection.receive(left_s).opaque)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _advance(self, queue: Queue) -> None:
        """Handle a response or wait for the end of a pause, then send the requests that are due."""
        if self._outbox.unanswered_by(queue.broker):
            self._receive(queue.broker)
        else:
            threading.Event().wait(max(self._outbox.sendings[queue].due_at - self._clock.monotonic(), 0.0))
        self._send_due()

    def _send_due(self) -> None:
        now = self._clock.monotonic()
        for sending in self._outbox.due(now):
            if sending.due_at <= now:  # otherwise the connection has just broken
                self._send(sending)

    def _send(self, sending: Sending) -> None:
        if sending.failures:
            left = sending.request.left()
            self._outbox.reduce(sending, left)
            if left is None:
                return
        queue = sending.request.queue
        try:
            self._connection(queue).send(self._outbox.frame(sending))
            self._outbox.delivered.requests += 1
        except CometMQError as error:  # or the nameserver's answer about a broker that is not available
            self._broken(queue.broker, error.message)

    def _connection(self, queue: Queue) -> BlockingConnection:
        connection = self._connections.get(queue.broker)
        if connection is None:
            address = self._address_of(queue, queue.broker in self._moved)
            connection = BlockingConnection(address, self._options.answer_s, self._options.security)
            self._connections[queue.broker] = connection
            self._moved.discard(queue.broker)
        return connection

    def _receive(self, broker: str) -> None:
        try:
            answer = self._connections[broker].receive()
        except BlockingConnectionError as error:
            self._broken(broker, error.message)
        else:
            self._outbox.answered(broker, answer, self._clock.monotonic())

    def _broken(self, broker: str, reason: str) -> None:
        connection = self._connections.pop(broker, None)
        if connection is not None:
            connection.close()
        self._moved.add(broker)
        self._outbox.broken(broker, reason, self._clock.monotonic())
