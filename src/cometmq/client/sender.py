"""One message on its way: queue chosen, sent, answered, tried again (``DefaultMQProducerImpl``).

A :class:`Delivery` is driven by callbacks: as long as the route is known and the connection open,
nothing is awaited between the call and the answer. Only what is out of the ordinary (no route, no
connection, no room, another attempt) takes a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.client.any_delay import TimerBrokers, has_any_delay
from cometmq.client.errors import (
    AccessDeniedError,
    ClientError,
    DelayNotSupportedError,
    IllegalMessageError,
    MasterNotFoundError,
    RemotingConnectError,
    RemotingError,
    SendFailedError,
    refusal,
)
from cometmq.client.fault import LatencyFault
from cometmq.client.hooks import CommunicationMode, SendForbiddenError, SendMessageContext
from cometmq.client.instance import ClientInstance
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.reachability import ReachabilityDetector
from cometmq.client.route import queue_or_fail
from cometmq.client.selectors import QueueSelector, RoundRobin
from cometmq.client.send_encoding import SendEncoder
from cometmq.client.send_observation import SendObservation
from cometmq.client.send_result import STATUS_BY_CODE, SendResult, SendStatus
from cometmq.errors import CometMQError
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client_connection import Answer, ClientConnection
from cometmq.remoting.client_errors import RemotingTimeoutError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.deadline import within

Done = Callable[[int, list[SendResult] | BaseException], None]

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
"""Flow control: certainly not stored, so it is tried again until the time is up."""

_NOTHING_SENT: Final = (RemotingConnectError, MasterNotFoundError)
"""A broker that is away, perhaps for a restart: as certainly not stored, so until the time is up too."""

MAX_BACKOFF_S: Final = 1.0
"""Longest pause between two attempts: a broker that is back is noticed at most that late."""
_MAX_DOUBLINGS: Final = 16


class Delivery:
    """A message, or a batch, that is being sent; ``done(index, results or failure)`` is called once."""

    __slots__ = (
        "_sender",
        "attempts",
        "batch",
        "begun_at",
        "body",
        "born_timestamp",
        "code",
        "deadline",
        "done",
        "index",
        "message",
        "mode",
        "observed",
        "properties_text",
        "queue",
        "request",
        "retries",
        "selector",
        "sent_at",
        "stored",
        "sys_flag",
        "target",
        "unique_keys",
    )

    def __init__(
        self,
        sender: Sender,
        code: int,
        message: Message,
        body: bytes,
        properties_text: str,
        sys_flag: int,
        unique_keys: tuple[str, ...],
        timeout_s: float,
    ) -> None:
        self._sender = sender
        self.code = code
        self.message = message
        self.body = body
        self.properties_text = properties_text
        self.sys_flag = sys_flag
        self.unique_keys = unique_keys
        self.target: MessageQueue | None = None
        self.selector: QueueSelector | None = None
        self.retries = sender.config.retry_times_when_send_failed
        self.index = 0
        self.done: Done = _nobody_waits
        self.born_timestamp = sender.clock.now_ms()
        self.begun_at = self.sent_at = sender.clock.monotonic()
        self.deadline = self.begun_at + timeout_s
        self.queue: MessageQueue | None = None
        self.request: RemotingCommand | None = None
        self.mode = CommunicationMode.SYNC
        self.batch: Sequence[Message] | None = None
        """The messages of a batch."""
        self.observed: SendMessageContext | None = None
        """What hooks have seen of the attempt under way."""
        self.attempts: list[tuple[str, CometMQError]] | None = None
        self.stored: list[SendResult] | None = None
        """Where it is stored already, though less safely than asked for; a further attempt may be safer."""

    def answered(self, answer: Answer) -> None:
        """The broker has answered, or will not."""
        self._sender.answered(self, answer)


def _certainly_unsent(error: CometMQError) -> bool:
    """Whether the message is stored nowhere by this attempt, so that nothing but time limits further ones."""
    return isinstance(error, _NOTHING_SENT) or getattr(error, "code", None) == _BUSY


def _nobody_waits(index: int, outcome: list[SendResult] | BaseException) -> None:
    """Until a caller says otherwise."""


class Sender:
    """Sends for one producer group."""

    def __init__(
        self,
        instance: ClientInstance,
        encoder: SendEncoder,
        config: ProducerConfig,
        observation: SendObservation | None = None,
    ) -> None:
        self._observation = observation
        self.config = config
        self.clock = instance.clock
        self._instance = instance
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._encoder = encoder
        self._timer_brokers = TimerBrokers(instance)
        enabled = config.send_latency_fault_enable
        self._fault = LatencyFault(instance.clock, config.latency_ladder()) if enabled else None
        self._detector = None
        if self._fault is not None and config.start_detector_enable:
            interval_s, timeout_s = config.detect_interval_s, config.detect_timeout_s
            self._detector = ReachabilityDetector(instance, self._fault, interval_s, timeout_s)
        self._robin = RoundRobin(self._fault)
        self._attempt_s = config.send_msg_max_timeout_per_request_s
        self.in_flight = 0
        self._idle: asyncio.Future[None] | None = None

    def start(self, delivery: Delivery) -> None:
        """Set a delivery on its way; ``done`` is called also for what fails at once."""
        self.in_flight += 1
        route = self._routes.known(delivery.message.topic)
        if route is None or not route.write_queues:
            self._instance.spawn(self._start_unknown(delivery))
        else:
            try:
                self._transmit(delivery, route.write_queues)
            except BaseException as error:  # a selector may raise anything
                self._finish(delivery, error)

    async def idle(self) -> None:
        """Wait until nothing is on its way."""
        while self.in_flight:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _finish(self, delivery: Delivery, outcome: list[SendResult] | BaseException) -> None:
        self.in_flight -= 1
        if not self.in_flight and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None
        delivery.done(delivery.index, outcome)

    async def oneway(
        self, message: Message, target: MessageQueue | None, selector: QueueSelector | None, unique_key: str
    ) -> None:
        """Send without an answer: returns once the message is in the connection's buffer."""
        encoder = self._encoder
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
            observation.left(observation.begin_attempt((message,), (unique_key,), body, text, queue, address, mode))
        if self._remoting.hooks:
            header = encoder.header(_SEND, queue, text, sys_flag, message.flag, self.clock.now_ms())
            await self._remoting.invoke_oneway(address, _SEND, header, body)
        else:
            opaque = self._remoting.next_opaque()
            connection.write(
                encoder.frame(
                    _SEND, queue, opaque, body, text, sys_flag, message.flag, self.clock.now_ms(), FLAG_ONEWAY
                )
            )

    def answered(self, delivery: Delivery, answer: Answer) -> None:
        """Judge an answer: done, failed, or another attempt."""
        queue = delivery.queue
        assert queue is not None
        if isinstance(answer, RemotingCommand):
            if delivery.request is not None:
                self._remoting.look_back(self._routes.master(queue.broker_name) or "", delivery.request, answer)
            status = STATUS_BY_CODE.get(answer.code)
            if status is not None:
                self._stored(delivery, queue, status, answer)
                return
            address = self._routes.master(queue.broker_name) or queue.broker_name
            error: CometMQError = refusal(address, answer.code, answer.remark, f"sending to topic {queue.topic}")
            again = answer.code in self.config.retry_response_codes and not isinstance(error, AccessDeniedError)
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
            address = self._routes.master(queue.broker_name) or queue.broker_name
            failure = RemotingError(address, f"{address} answered a send without the fields of one: {fields}")
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
        unsent = _certainly_unsent(error)
        if self._fault is not None and isinstance(error, ClientError | RemotingError) and (again or unsent):
            self._fault.note_failure(broker_name)
            if self._detector is not None and broker_name and isinstance(error, RemotingError):
                self._detector.watch(broker_name)
        if again and not unsent:
            again = sum(not _certainly_unsent(failure) for _, failure in attempts) <= delivery.retries
        if (again or unsent) and self.clock.monotonic() + self._backoff(delivery) < delivery.deadline:
            self._instance.spawn(self._again(delivery))
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
                raise IllegalMessageError(f"the queue belongs to topic {target.topic}, the message to {message.topic}")
            return target
        if selector is not None:
            return selector(queues, message)
        return self._robin.choose(message.topic, queues, last_broker)

    def _transmit(self, delivery: Delivery, queues: Sequence[MessageQueue]) -> None:
        last_broker = delivery.attempts[-1][0] if delivery.attempts else None
        queue = self._choose(delivery.message, queues, delivery.target, delivery.selector, last_broker)
        delivery.queue = queue
        address = self._routes.master(queue.broker_name)
        connection = None if address is None else self._remoting.live(address)
        if connection is None or (has_any_delay(delivery.message) and address not in self._timer_brokers):
            self._instance.spawn(self._transmit_slowly(delivery, queue))
        else:
            self._submit(delivery, queue, connection)

    def _submit(self, delivery: Delivery, queue: MessageQueue, connection: ClientConnection) -> None:
        if self._observation is not None and delivery.observed is None:
            self._observation.begin(delivery, queue, connection.address)
        encoder = self._encoder
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

    # --- what takes a task ---

    async def _start_unknown(self, delivery: Delivery) -> None:
        topic = delivery.message.topic
        left = delivery.deadline - self.clock.monotonic()
        try:
            asking = self._routes.find_for_send(topic, self.config.default_topic_queue_nums, delivery.deadline)
            route = await within(self.clock, left, asking)
            self._transmit(delivery, queue_or_fail(route))
        except TimeoutError as error:
            late = RemotingTimeoutError(";".join(self._routes.namesrv), f"no route for topic {topic} in time")
            late.__cause__ = error
            self._finish(delivery, late)
        except MasterNotFoundError as error:
            self._failed(delivery, "", error, True)
        except BaseException as error:
            self._finish(delivery, error)

    async def _transmit_slowly(self, delivery: Delivery, queue: MessageQueue) -> None:
        try:
            address = await self._instance.master_of(queue)
            if self._observation is not None:
                self._observation.begin(delivery, queue, address)
            connection = await self._remoting.ready(address, delivery.deadline)
            if has_any_delay(delivery.message):
                await self._timer_brokers.demand(address, delivery.deadline - self.clock.monotonic())
            self._submit(delivery, queue, connection)
        except (SendForbiddenError, DelayNotSupportedError) as error:
            self._finish(delivery, error)
        except CometMQError as error:
            self._failed(delivery, queue.broker_name, error, True)
        except BaseException as error:
            self._finish(delivery, error)

    async def _again(self, delivery: Delivery) -> None:
        topic = delivery.message.topic
        failed = {broker for broker, _ in delivery.attempts or ()}
        self._instance.spawn(self._refresh(topic))
        try:
            route = await self._routes.get_for_send(topic, self.config.default_topic_queue_nums)
            pinned = delivery.target is not None or delivery.selector is not None
            if pinned or all(queue.broker_name in failed for queue in route.write_queues):
                await self.clock.sleep(self._backoff(delivery))
                route = self._routes.known(topic) or route
            self._transmit(delivery, queue_or_fail(route))
        except MasterNotFoundError as error:
            self._failed(delivery, "", error, True)
        except BaseException as error:
            self._finish(delivery, error)

    def _backoff(self, delivery: Delivery) -> float:
        """Seconds before a broker that failed is tried again; twice as long each time, up to a limit."""
        doublings = min(len(delivery.attempts or ()) - 1, _MAX_DOUBLINGS)
        return min(self.config.retry_backoff_s * float(1 << doublings), MAX_BACKOFF_S)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except CometMQError:
            return  # the route known so far stays in use
