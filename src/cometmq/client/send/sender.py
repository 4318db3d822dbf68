"""Sends messages: chooses queues, sends requests, evaluates responses and retries (``DefaultMQProducerImpl``).

Theory of operation. A :class:`Delivery` is one message or batch. It passes through these steps:

* ``start``: if the route is known and a connection is open, the request is written immediately; otherwise a task waits
  for both.
* ``answered``: the answer, or the failure of the connection. A stored message ends the delivery.
* ``_failed``: another attempt or the end. Each failure is of one of two kinds. *Certainly unsent* (SYSTEM_BUSY, no
  connection, no master, a broker that stops): the message is stored nowhere, so only the delivery's deadline limits
  further attempts. Any other failure may have stored the message, so ``retries`` limits the attempts, and only failures
  that the configuration names are repeated.
* ``_finish``: ``done`` is called exactly once.

While the route is known and the connection open, nothing is awaited between the call and the answer, and no task
is created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from cometmq.client.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    DelayNotSupportedError,
    IllegalMessageError,
    MasterNotFoundError,
    RemotingError,
    RemotingTooMuchRequestError,
    SendFailedError,
    refusal,
)
from cometmq.client.hooks import CommunicationMode, SendForbiddenError, SendObservation
from cometmq.client.instance import ClientInstance
from cometmq.client.retries import BUSY_CODES, Pauses
from cometmq.client.route import queue_or_fail
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.delivery import Delivery, certainly_unsent
from cometmq.client.send.encoding import SendEncoder
from cometmq.client.send.selection import (
    LatencyFault,
    QueueSelector,
    ReachabilityDetector,
    RoundRobin,
    queue_of_lite_topic,
)
from cometmq.client.send.timer_brokers import TimerBrokers, has_any_delay
from cometmq.client.send_result import STATUS_BY_CODE, SendResult, SendStatus
from cometmq.clock import wait_for
from cometmq.errors import CometMQError
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import NOT_STORED, RequestCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.connections.client_connection import Answer, ClientConnection
from cometmq.remoting.errors import RemotingTimeoutError

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
MAX_BACKOFF_S: Final = 1.0
"""Maximum pause between two attempts, which is also the maximum delay before a recovered broker is noticed."""
REFRESH_S: Final = 0.5
"""Maximum time for which a repeated attempt waits for the nameserver's route."""


class Sender:
    """Sends a producer group's messages."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ProducerConfig,
        observation: SendObservation | None = None,
    ) -> None:
        self.encoder = SendEncoder(group, config, instance.remoting.credentials, instance.clock.now_ms)
        self._observation = observation
        self.config = config
        self.clock = instance.clock
        self._instance = instance
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._brokers = instance.routes.brokers
        self._timer_brokers = TimerBrokers(instance)
        enabled = config.send_latency_fault_enable
        self._fault = LatencyFault(instance.clock, config.latency_ladder()) if enabled else None
        self._detector = None
        if self._fault is not None and config.start_detector_enable:
            interval_s, timeout_s = config.detect_interval_s, config.detect_timeout_s
            self._detector = ReachabilityDetector(instance, self._fault, interval_s, timeout_s)
        self._pauses = Pauses(config.retry_backoff_s, MAX_BACKOFF_S)
        self._robin = RoundRobin(self._fault)
        self._attempt_s = config.send_msg_max_timeout_per_request_s
        self._begun: list[tuple[Delivery, MessageQueue, ClientConnection, float]] = []
        """Deliveries that started in this event loop round and are waiting for room, with their start times."""
        self.in_flight = 0
        self._idle: asyncio.Future[None] | None = None

    def delivery(
        self,
        code: int,
        message: Message,
        body: bytes,
        properties_text: str,
        sys_flag: int,
        unique_keys: tuple[str, ...],
        timeout_s: float,
    ) -> Delivery:
        """Create a delivery with a time limit of ``timeout_s`` seconds from now; :meth:`start` starts it."""
        clock = self.clock
        now = clock.monotonic()
        return Delivery(
            self,
            code,
            message,
            body,
            properties_text,
            sys_flag,
            unique_keys,
            self.config.retry_times_when_send_failed,
            clock.now_ms(),
            now,
            now + timeout_s,
        )

    async def look_up(self, topic: str) -> None:
        """Request the route of an unknown topic once; failures are left to the topic's deliveries.

        Many messages that begin before the route is known would otherwise each wait for it in its own task, while their
        time limits run.
        """
        if self._routes.known(topic) is None:
            with suppress(CometMQError, TimeoutError):
                asking = self._routes.get_for_send(topic, self.config.default_topic_queue_nums)
                await wait_for(self.clock, self.config.send_timeout_s, asking)

    def start(self, delivery: Delivery) -> None:
        """Start a delivery; ``done`` is called even if it fails immediately."""
        self.in_flight += 1
        route = self._routes.known(delivery.message.topic)
        if route is None or not route.write_queues:
            self._instance.spawn(self._start_unknown(delivery, self.clock.monotonic()))
        else:
            try:
                self._transmit(delivery, route.write_queues)
            except BaseException as error:  # a selector may raise anything
                self._finish(delivery, error)

    async def idle(self) -> None:
        """Wait until no delivery is in progress."""
        while self.in_flight:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a call in which deliveries start or end, so that :meth:`idle` waits for it."""
        self.in_flight += 1
        try:
            yield
        finally:
            self._one_less()

    def _one_less(self) -> None:
        self.in_flight -= 1
        if not self.in_flight and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _finish(self, delivery: Delivery, outcome: list[SendResult] | BaseException) -> None:
        self._one_less()
        delivery.done(delivery.index, outcome)

    async def oneway(
        self, message: Message, target: MessageQueue | None, selector: QueueSelector | None, unique_key: str
    ) -> None:
        """Send a message with no response; return when it is in the connection's buffer."""
        encoder = self.encoder
        text = encoder.properties_text(message, unique_key)
        body, sys_flag = encoder.packed(message)
        deadline = self.clock.monotonic() + self.config.send_timeout_s
        route = await self._routes.find_for_send(message.topic, self.config.default_topic_queue_nums, deadline)
        queue = self._choose(message, queue_or_fail(route), target, selector, None)
        address = await self._instance.master_of(queue)
        connection = await self._remoting.ready(address, deadline)
        if has_any_delay(message):
            await self._timer_brokers.demand(address, self.config.send_timeout_s)
        observation = self._observation
        if observation is not None:
            mode = CommunicationMode.ONEWAY
            observation.left(observation.begin((message,), (unique_key,), body, text, queue, address, mode))
        if self._remoting.hooks:
            header = encoder.header(_SEND, queue, text, sys_flag, message.flag, self.clock.now_ms())
            await self._remoting.invoke_oneway(address, _SEND, header, body)
        else:
            now, opaque, flag = self.clock.now_ms(), self._remoting.next_opaque(), message.flag
            connection.write(encoder.frame(_SEND, queue, opaque, body, text, sys_flag, flag, now, FLAG_ONEWAY))

    def answered(self, delivery: Delivery, answer: Answer) -> None:
        """Finish a delivery according to its response, or start another attempt."""
        queue = delivery.queue
        assert queue is not None
        if isinstance(answer, RemotingCommand):
            if delivery.request is not None:
                self._remoting.run_answer_hooks(self._brokers.master(queue.broker_name) or "", delivery.request, answer)
            status = STATUS_BY_CODE.get(answer.code)
            if status is not None:
                self._stored(delivery, queue, status, answer)
                return
            address = self._brokers.master(queue.broker_name) or queue.broker_name
            refused = refusal(address, answer.code, answer.remark, f"sending to topic {queue.topic}")
            refused.not_stored = NOT_STORED in answer.ext_fields
            error: CometMQError = refused
            again = answer.code in self.config.retry_response_codes and not isinstance(refused, AccessDeniedError)
        else:
            error, again = answer, True
        self._failed(delivery, queue.broker_name, error, again)

    def _stored(self, delivery: Delivery, queue: MessageQueue, status: SendStatus, answer: RemotingCommand) -> None:
        if self._fault is not None:
            self._fault.note(queue.broker_name, (self.clock.monotonic() - delivery.sent_at) * 1000)
        fields = answer.ext_fields
        try:
            offset_id = fields["msgId"]
            stored_queue = queue
            queue_id = fields["queueId"]
            if queue_id != str(queue.queue_id):
                stored_queue = MessageQueue(queue.topic, queue.broker_name, int(queue_id))
            offset = int(fields["queueOffset"])
            keys = delivery.unique_keys
            if len(keys) == 1:
                handle = fields.get("recallHandle")
                results = [SendResult(status, keys[0], offset_id, stored_queue, offset, handle)]
            else:
                ids = offset_id.split(",")
                results = [
                    SendResult(status, key, ids[number] if number < len(ids) else "", stored_queue, offset + number)
                    for number, key in enumerate(keys)
                ]
        except (KeyError, ValueError) as error:
            address = self._brokers.master(queue.broker_name) or queue.broker_name
            failure = RemotingError(
                address,
                f"{address} responded to a send without the required fields: {fields}",
                next_step="check that the address belongs to a RocketMQ broker",
            )
            failure.__cause__ = error
            self._finish(delivery, delivery.stored or failure)
            return
        if self._observation is not None and delivery.observed is not None:
            self._observation.stored(delivery.observed, results, answer)
            delivery.observed = None
        if status is not SendStatus.SEND_OK and self.config.retry_another_broker_when_not_store_ok:
            delivery.stored = results
            self._failed(delivery, queue.broker_name, CometMQError(f"stored with status {status.value}"), True)
            return
        self._finish(delivery, results)

    def _failed(self, delivery: Delivery, broker_name: str, error: CometMQError, again: bool) -> None:
        attempts = delivery.attempts = [*(delivery.attempts or ()), (broker_name, error)]
        if self._observation is not None and delivery.observed is not None:
            self._observation.failed(delivery.observed, error)
            delivery.observed = None
        again = again or certainly_unsent(error)
        if self._fault is not None and isinstance(error, ClientError | RemotingError) and again:
            self._fault.note_failure(broker_name)
            if self._detector is not None and broker_name and isinstance(error, RemotingError):
                self._detector.watch(broker_name)
        if again and delivery.has_another_attempt(self.clock.monotonic() + self._pauses.after(len(attempts))):
            self._instance.spawn(self._try_again(delivery))
        elif delivery.stored is not None:
            self._finish(delivery, delivery.stored)
        elif len(attempts) == 1:
            self._finish(delivery, error)
        else:
            elapsed = self.clock.monotonic() - delivery.begun_at
            failure = SendFailedError(delivery.message.topic, tuple(attempts), elapsed)
            failure.__cause__ = error
            self._finish(delivery, failure)

    # --- one attempt ---

    def _choose(
        self,
        message: Message,
        queues: Sequence[MessageQueue],
        target: MessageQueue | None,
        selector: QueueSelector | None,
        last_broker: str | None,
    ) -> MessageQueue:
        if target is not None:
            if target.topic != message.topic:
                raise IllegalMessageError(
                    f"the queue belongs to topic {target.topic}, but the message belongs to {message.topic}",
                    "choose one of the queues of the message's topic",
                )
            return target
        if selector is not None:
            return selector(queues, message)
        if message.lite_topic is not None:
            return queue_of_lite_topic(queues, message.lite_topic)
        return self._robin.choose(message.topic, queues, last_broker)

    def _transmit(self, delivery: Delivery, queues: Sequence[MessageQueue]) -> None:
        last_broker = delivery.attempts[-1][0] if delivery.attempts else None
        queue = self._choose(delivery.message, queues, delivery.target, delivery.selector, last_broker)
        delivery.queue = queue
        address = self._brokers.master(queue.broker_name)
        connection = None if address is None else self._remoting.connected(address)
        if connection is None or (has_any_delay(delivery.message) and address not in self._timer_brokers):
            self._instance.spawn(self._transmit_slowly(delivery, queue, self.clock.monotonic()))
        elif connection.has_room:
            self._submit(delivery, queue, connection)
        else:
            if not self._begun:
                asyncio.get_running_loop().call_soon(self._wait_for_room)
            self._begun.append((delivery, queue, connection, self.clock.monotonic()))

    def _wait_for_room(self) -> None:
        """Let the deliveries that started in this round of the event loop wait for room, without a task for each of
        them.
        """
        begun, self._begun = self._begun, []
        for delivery, queue, connection, since in begun:
            self._extend(delivery, since)
            connection.call_when_room(delivery.deadline, partial(self._submit_after_wait, delivery, queue, connection))

    def _submit_after_wait(
        self, delivery: Delivery, queue: MessageQueue, connection: ClientConnection, error: RemotingError | None
    ) -> bool:
        """Submit a delivery that waited for room; return False if it no longer needs room."""
        try:
            if error is not None:
                raise error
            self._check_time(delivery)
            self._submit(delivery, queue, connection)
            return True
        except (SendForbiddenError, DelayNotSupportedError) as failure:
            self._finish(delivery, failure)
        except CometMQError as failure:
            self._failed(delivery, queue.broker_name, failure, True)
        except BaseException as failure:
            self._finish(delivery, failure)
        return False

    def _observe(self, delivery: Delivery, queue: MessageQueue, address: str) -> None:
        assert self._observation is not None
        messages = tuple(delivery.batch or (delivery.message,))
        body, text = delivery.body, delivery.properties_text
        delivery.observed = self._observation.begin(
            messages, delivery.unique_keys, body, text, queue, address, delivery.mode
        )

    def _submit(self, delivery: Delivery, queue: MessageQueue, connection: ClientConnection) -> None:
        if self._observation is not None and delivery.observed is None:
            self._observe(delivery, queue, connection.address)
        encoder = self.encoder
        opaque = self._remoting.next_opaque()
        if self._remoting.hooks:
            header = encoder.header(
                delivery.code,
                queue,
                delivery.properties_text,
                delivery.sys_flag,
                delivery.message.flag,
                delivery.born_timestamp,
            )
            request = self._remoting.request(connection.address, delivery.code, header, delivery.body, None)
            delivery.request = request
            opaque, frame = request.opaque, request.encode()
        else:
            frame = encoder.frame(
                delivery.code,
                queue,
                opaque,
                delivery.body,
                delivery.properties_text,
                delivery.sys_flag,
                delivery.message.flag,
                delivery.born_timestamp,
            )
        delivery.sent_at = now = self.clock.monotonic()
        deadline = delivery.deadline
        if self._attempt_s:
            deadline = min(deadline, now + self._attempt_s)
        connection.submit(opaque, frame, deadline, now, delivery.answered)

    # --- in a task: no route, no connection, another attempt ---

    def _check_time(self, delivery: Delivery) -> None:
        """Stop an unsent delivery if its time is up or no caller waits for its result.

        :raises RemotingTooMuchRequestError: the delivery must not be sent.
        """
        if delivery.given_up or self.clock.monotonic() >= delivery.deadline:
            topic, step = delivery.message.topic, "send fewer messages at a time, or increase the timeout"
            late = f"the timeout of the message to topic {topic} expired before it was sent; the message is not stored"
            raise RemotingTooMuchRequestError(topic, late, next_step=step)

    def _extend(self, delivery: Delivery, since: float) -> None:
        """Extend a delivery's deadline by the time that has passed since its start."""
        delivery.deadline += self.clock.monotonic() - since

    async def _start_unknown(self, delivery: Delivery, since: float) -> None:
        """Find the route, then send the message."""
        topic = delivery.message.topic
        self._extend(delivery, since)
        left = delivery.deadline - self.clock.monotonic()
        try:
            asking = self._routes.find_for_send(topic, self.config.default_topic_queue_nums, delivery.deadline)
            route = await wait_for(self.clock, left, asking)
            self._check_time(delivery)
            self._transmit(delivery, queue_or_fail(route))
        except TimeoutError as error:
            late = RemotingTimeoutError(
                ";".join(self._routes.namesrv),
                f"could not find the route for topic {topic} in time",
                next_step="check the nameserver's address and that it is running, or increase the timeout",
            )
            late.__cause__ = error
            self._finish(delivery, late)
        except MasterNotFoundError as error:
            self._failed(delivery, "", error, True)
        except BaseException as error:
            self._finish(delivery, error)

    async def _transmit_slowly(self, delivery: Delivery, queue: MessageQueue, since: float) -> None:
        """Connect to the broker, then send the message."""
        self._extend(delivery, since)
        try:
            address = await self._instance.master_of(queue)
            if self._observation is not None:
                self._observe(delivery, queue, address)
            connection = await self._remoting.ready(address, delivery.deadline)
            if has_any_delay(delivery.message):
                await self._timer_brokers.demand(address, delivery.deadline - self.clock.monotonic())
            self._check_time(delivery)
            self._submit(delivery, queue, connection)
        except (SendForbiddenError, DelayNotSupportedError) as error:
            self._finish(delivery, error)
        except CometMQError as error:
            self._failed(delivery, queue.broker_name, error, True)
        except BaseException as error:
            self._finish(delivery, error)

    async def _try_again(self, delivery: Delivery) -> None:
        topic = delivery.message.topic
        failed = {broker for broker, _ in delivery.attempts or ()}
        try:
            route = await self._routes.get_for_send(topic, self.config.default_topic_queue_nums)
            pinned = delivery.target is not None or delivery.selector is not None
            pinned = pinned or delivery.message.lite_topic is not None
            if pinned or all(queue.broker_name in failed for queue in route.write_queues):
                await self.clock.sleep(self._pauses.after(len(delivery.attempts or ())))
                await self._refresh_soon(delivery, topic)
                route = self._routes.known(topic) or route
            else:
                self._instance.spawn(self._refresh(topic))
            self._check_time(delivery)
            self._transmit(delivery, queue_or_fail(route))
        except (MasterNotFoundError, RemotingTooMuchRequestError) as error:
            self._failed(delivery, "", error, True)
        except BaseException as error:
            self._finish(delivery, error)

    async def _refresh_soon(self, delivery: Delivery, topic: str) -> None:
        """Refresh a route. Wait a moment for it if another broker may have become the master during the pause."""
        refreshing = self._instance.spawn(self._refresh(topic))
        error = delivery.attempts[-1][1] if delivery.attempts else None
        if isinstance(error, BrokerError) and error.code in BUSY_CODES:
            return
        left = delivery.deadline - self.clock.monotonic()
        with suppress(TimeoutError):
            await wait_for(self.clock, min(REFRESH_S, left / 2), asyncio.shield(refreshing))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except CometMQError:
            return  # the route known so far stays in use
