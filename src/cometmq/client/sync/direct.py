"""Sends messages in the caller's thread, on connections of its own, while an event loop keeps the routes.

A synchronous send through the event loop costs two changes of the thread, which take longer than the broker. The usual
message needs neither: its route is known, and its broker answers. Everything else is left to the loop, see
:meth:`DirectSender.send`.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

from cometmq.client.errors import refusal
from cometmq.client.instance import ClientInstance
from cometmq.client.retries import is_not_now
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.delivery import certainly_unsent
from cometmq.client.send.encoding import SendEncoder
from cometmq.client.send.timer_brokers import has_any_delay
from cometmq.client.send_result import STATUS_BY_CODE
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import RemotingSendError, RemotingTimeoutError
from cometmq.remoting.security import Security

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_ABSENT_S: Final = 10.0
"""Time in seconds for which everything for a broker is left to the event loop after a connection to it has failed."""


class DirectSender:
    """Sends one message at a time.

    :param instance: knows the routes.
    :param security: the credentials and TLS of the instance; with TLS, everything is left to the event loop.
    """

    def __init__(self, instance: ClientInstance, group: str, config: ProducerConfig, security: Security) -> None:
        self._instance = instance
        self._timeout_s = config.send_timeout_s
        self._security = security
        self._encoder = SendEncoder(group, config, security.credentials, instance.clock.now_ms)
        self._ids = UniqIdGenerator(instance.clock)
        self._turns = itertools.count()
        self._opaques = itertools.count(1)
        self._connections: dict[str, BlockingConnection] = {}
        self._absent_until: dict[str, float] = {}
        self._sending = threading.Lock()

    def send(self, message: Message) -> bool:
        """Store a message; return false if the event loop has to send it.

        So it is if the route is not known, the broker is busy, stops, or has not accepted a connection a moment ago,
        another thread is sending, the message is delayed, or requests need hooks or TLS. Nothing is stored then, except
        by a master that has lost its set and so refuses the message: the loop may store a copy.

        :raises IllegalMessageError: no broker would accept the message.
        :raises BrokerError: the broker refuses it.
        :raises RemotingTimeoutError: the broker does not answer in time; it may have stored the message.
        :raises RemotingSendError: the connection was lost; the broker may have stored the message.
        """
        route = self._instance.routes.known(message.topic)
        if route is None or not route.write_queues or message.lite_topic is not None or has_any_delay(message):
            return False
        if self._security.tls is not None or self._instance.remoting.hooks:
            return False
        queue = route.write_queues[next(self._turns) % len(route.write_queues)]
        address = self._instance.routes.brokers.master(queue.broker_name)
        if address is None or self._is_absent(address) or not self._sending.acquire(blocking=False):
            return False
        try:
            encoder, opaque = self._encoder, next(self._opaques)
            encoder.check(message)
            text = encoder.properties_text(message, self._ids.next())
            body, sys_flag = encoder.packed(message)
            now_ms = self._instance.clock.now_ms()
            frame = encoder.frame(_SEND, queue, opaque, body, text, sys_flag, message.flag, now_ms)
            try:
                connection = self._connection(address)
            except BlockingConnectionError:
                self._absent_until[address] = self._instance.clock.monotonic() + _ABSENT_S
                return False
            answer = self._exchange(connection, frame, opaque)
        finally:
            self._sending.release()
        if answer.code in STATUS_BY_CODE:
            return True
        error = refusal(address, answer.code, answer.remark, f"sending to topic {message.topic}")
        if certainly_unsent(error) or is_not_now(error):
            return False
        raise error

    def _is_absent(self, address: str) -> bool:
        until = self._absent_until.get(address)
        if until is not None and self._instance.clock.monotonic() >= until:
            self._absent_until.pop(address, None)
            return False
        return until is not None

    def _connection(self, address: str) -> BlockingConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_quiet:
            return connection
        self._drop(address)
        connection = self._connections[address] = BlockingConnection(address, self._timeout_s, self._security)
        return connection

    def _exchange(self, connection: BlockingConnection, frame: bytes, opaque: int) -> RemotingCommand:
        try:
            connection.send(frame)
            while True:
                answer = connection.receive()
                if answer.is_response and answer.opaque == opaque:
                    return answer
        except BlockingConnectionError as error:
            self._drop(connection.address)
            kind = RemotingTimeoutError if isinstance(error.__cause__, TimeoutError) else RemotingSendError
            raise kind(error.address, error.message, next_step=error.next_step) from error
        except BaseException:  # for example a signal: the answer is still on its way
            self._drop(connection.address)
            raise

    def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connections.

        A signal handler that raised in the middle of a send may have left the lock behind, which thus has a time limit.
        """
        if self._sending.acquire(timeout=self._timeout_s):
            for address in list(self._connections):
                self._drop(address)
            self._sending.release()
