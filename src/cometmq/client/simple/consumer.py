"""A consumer that receives messages for a limited time over remoting, as Apache's ``SimpleConsumer`` over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cometmq.client.background import Background
from cometmq.client.consumer.subscription import ALL, TAG, check_expressions, subscription
from cometmq.client.errors import ClientStateError, RemotingError
from cometmq.client.instance import ClientInstance
from cometmq.client.popping.consumer import PoppingConsumer
from cometmq.client.serialization import deserializer_of
from cometmq.client.simple.acks import Acks, Done
from cometmq.client.simple.config import (
    MAX_HEARTBEAT_TOPICS,
    MAX_MESSAGES,
    MAX_TOPICS,
    SimpleConsumerConfig,
    check_invisible_time,
)
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.simple.places import Places
from cometmq.client.simple.renewals import Renewals
from cometmq.client.simple.requests import SimpleRequests
from cometmq.client.steps import Steps
from cometmq.message.message import MessageExt
from cometmq.message.names import check_topic
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.security import Security

_RETURN_PAUSES_S: Final = (0.0, 0.1, 0.2)
"""Pauses in seconds before attempts to open a lost connection again."""


class SimpleConsumer(PoppingConsumer):
    """A member of a consumer group that asks for messages when it can handle them (POP).

    :meth:`receive` returns messages that no other member receives for ``invisible_s`` seconds, from any queue: members
    own no queues, and a slow member delays nobody. Acknowledge each message with :meth:`ack`. A message that is not
    acknowledged in time is received again, up to the group's ``retryMaxTimes`` (16), and then becomes a dead letter.

    ``async with`` starts and closes the consumer. Many tasks may call :meth:`receive` at the same time. The brokers
    must be CometMQ's, or of RocketMQ 5.1 or later.

    :param group: the consumer group.
    :param subscriptions: for each topic an expression: ``*``, or tags such as ``TagA || TagB``; see :meth:`subscribe`.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param config: all other options.
    :param on_lost: called with each message whose renewal has failed, or that was renewed for ``renew_up_to_s``, and
        that the group now receives again.
    :param instance: connections to share with other clients; by default it creates its own.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param deserializer: sets the ``value`` of messages; see :class:`~cometmq.client.PushConsumer`.
    :raises ValueError: a name or an expression is not allowed, or an address has no port.
    :raises ClientStateError: there are more than 16,000 topics.
    :raises TypeError: the deserializer is invalid.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        namesrv: str | None = None,
        *,
        config: SimpleConsumerConfig | None = None,
        on_lost: Callable[[PoppedMessage], object] | None = None,
        instance: ClientInstance | None = None,
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self.config = config or SimpleConsumerConfig()
        super().__init__(group, namesrv, instance, security)
        decoder = None if deserializer is None else deserializer_of(deserializer)
        self._returning: set[str] = set()
        """Brokers to which a lost connection is being opened again."""
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in (subscriptions or {}).items():
            self._check_room([topic])
            self._subscriptions[topic] = self._subscription(topic, expression, TAG)
        self._background = Background(f"the consumer of group {group}", self.instance.clock)
        self._requests = SimpleRequests(self.instance, group, self.config, decoder)
        self._acks = Acks(self._requests, self._background.spawn)
        self._renewals = Renewals(self._requests, self._background.spawn, on_lost)

    def _subscription(self, topic: str, expression: str, expression_type: str) -> SubscriptionData:
        wrong = check_topic(topic)
        if wrong is not None:
            raise ValueError(wrong)
        return subscription(topic, expression, expression_type, self.instance.clock.now_ms())

    def _check_room(self, topics: Iterable[str]) -> None:
        new = sum(topic not in self._subscriptions for topic in topics)
        if new and len(self._subscriptions) + new > MAX_TOPICS:
            raise ClientStateError(
                f"a consumer of group {self.group} would subscribe to more than {MAX_TOPICS} topics",
                next_step="divide the topics among several consumers",
            )

    # --- start and end ---

    async def start(self) -> None:
        """Join the group. A topic that does not exist yet is read as soon as it exists.

        :raises ClientStateError: the consumer was started before.
        :raises BrokerError: a broker cannot filter by one of the expressions.
        :raises RemotingError: no nameserver answers.
        """
        self._demand_not_started()
        self.instance.add_consumer(self.group, self)
        self._use.begin(self._background.stop)
        self._state = "running"
        self._started_ms = self.instance.clock.now_ms()
        if self.config.gives_back_when_gone:
            self.instance.remoting.on_failure.append(self._connection_lost)
        self._places = Places(self._requests, self._subscriptions, self._acks.add, self._background.spawn)
        try:
            await check_expressions(self.instance, self.group, self._subscriptions.values())
            await self._places.find_routes(self._subscriptions)
            await self.instance.send_heartbeats()
        except BaseException:
            await self.close()
            raise

    def _connection_lost(self, address: str) -> None:
        """Come back at once, before the broker gives this consumer's messages to others."""
        is_broker = any(address in broker.values() for broker in self.instance.routes.brokers.values())
        if self._state == "running" and is_broker and address not in self._returning:
            self._returning.add(address)
            self._background.spawn(self._return_to(address))

    async def _return_to(self, address: str) -> None:
        clock = self.instance.clock
        try:
            for pause_s in _RETURN_PAUSES_S:
                await clock.sleep(pause_s)
                with suppress(RemotingError):
                    await self.instance.remoting.ready(address, clock.monotonic() + 1)  # a heartbeat follows
                    return
        finally:
            self._returning.discard(address)

    async def close(self) -> None:
        """Finish acknowledgements, and leave the group.

        Messages that arrived but that no call has returned are given back. Returned messages that are not acknowledged
        are received again when their time is over.
        """
        if self._state == "running":
            self._state = "closed"
            await self._end_once(self._close)
        elif self._ending is not None:
            await self._end_once(self._close)

    async def _close(self) -> None:
        if self._connection_lost in self.instance.remoting.on_failure:
            self.instance.remoting.on_failure.remove(self._connection_lost)
        self._places.stop()
        self._renewals.stop()
        await self._acks.join()
        await self._requests.give_back(await self._places.close())
        await self._requests.close()
        await self._background.stop()
        await self.instance.remove(consumer_group=self.group)
        await self._use.end()

    def stop(self) -> None:
        """Make waiting and later calls of :meth:`receive` return an empty list; call it on the consumer's event loop.

        Messages can still be acknowledged until the consumer is closed.
        """
        if self._state == "running":
            self._places.stop()

    @property
    def is_receiving(self) -> bool:
        """True until the consumer is stopped or closed."""
        return self._state == "running" and not self._places.is_stopped

    def _demand_running(self) -> None:
        if self._state != "running":
            raise ClientStateError(
                f"the consumer of group {self.group} is {self._state}", next_step="use it inside `async with`"
            )

    # --- subscriptions ---

    @property
    def topics(self) -> frozenset[str]:
        """The topics to which the consumer subscribes."""
        return frozenset(self._subscriptions)

    async def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, or change the expression; also while the consumer runs.

        :param expression: ``*``, tags (``TagA || TagB``), or an SQL92 expression on properties.
        :param expression_type: ``TAG`` or ``SQL92``.
        :raises ValueError: the name or the expression is not allowed.
        :raises BrokerError: a broker cannot filter by the expression.
        :raises RemotingError: no nameserver answers; the subscription is as before.
        :raises ClientStateError: the consumer already has 16,000 topics.
        """
        await self._subscribe([self._subscription(topic, expression, expression_type)])

    async def _subscribe(self, subscriptions: Sequence[SubscriptionData]) -> None:
        topics = [data.topic for data in subscriptions]
        self._check_room(topics)
        if self._state == "running":
            await check_expressions(self.instance, self.group, subscriptions)
            await self._places.find_routes(topics)
        before = self.heartbeat
        self._subscriptions.update(zip(topics, subscriptions, strict=True))
        await self._subscription_changed(topics, before)

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of a topic."""
        before = self.heartbeat
        if self._subscriptions.pop(topic, None) is not None:
            await self._subscription_changed([topic], before)

    async def _subscription_changed(self, topics: Iterable[str], before: ConsumerData) -> None:
        if self._state == "running":
            self._places.changed(topics)
            if self.heartbeat == before:  # it does not name the topics
                await self.instance.greet_new_brokers()
            else:
                await self.instance.send_heartbeats()

    # --- messages ---

    async def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_s: float | None = None,
        wait_s: float | None = None,
        topic: str | None = None,
    ) -> list[PoppedMessage]:
        """Wait for messages; return up to ``max_messages`` (1 to 32), or an empty list if none came in time.

        All topics are read in turn. In a topic of type PRIORITY, the most urgent messages come first. While the call
        waits, a broker that does not answer is asked again.

        :param invisible_s: seconds for which no other member receives the messages; by default as configured.
        :param wait_s: seconds to wait for messages; 0 returns at once. By default as configured.
        :param topic: a subscribed topic to receive from; by default all.
        :raises ValueError: an argument is out of its range, or the topic is not subscribed.
        :raises ClientStateError: the consumer is not running.
        :raises BrokerError: a broker refuses, for example because a permission or the group is missing.
        """
        self._demand_running()
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ValueError(f"max_messages must be from 1 to {MAX_MESSAGES}, not {max_messages}")
        invisible_s = self.config.invisible_s if invisible_s is None else invisible_s
        check_invisible_time(invisible_s)
        if topic is not None and topic not in self._subscriptions:
            raise ValueError(f"the consumer does not subscribe to topic {topic}: call subscribe first")
        invisible_ms = round(invisible_s * 1000)
        wait_s = self.config.wait_s if wait_s is None else wait_s
        found = await self._places.take(max_messages, invisible_ms, wait_s, topic)
        if found and self.config.renew_up_to_s and invisible_ms:
            self._renewals.add(found, invisible_ms)
        return found

    def give_back(self, messages: Sequence[PoppedMessage]) -> None:
        """Put back received messages that were not passed to the application; the next call returns them."""
        for message in messages:
            self._renewals.discard(message)
        self._places.give_back(messages)

    def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        """Iterate over messages until the consumer is stopped or closed; acknowledge each with :meth:`ack`."""
        return Steps(self._next)

    async def _next(self) -> PoppedMessage:
        while self.is_receiving:
            if messages := await self.receive(1):
                return messages[0]
        raise StopAsyncIteration

    async def ack(self, messages: PoppedMessage | Sequence[PoppedMessage]) -> None:
        """Acknowledge a message, or several: the group has consumed them.

        Acknowledgements of one moment are sent together. While a broker does not answer, they are repeated.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer for ``retry_s``.
        :raises ClientStateError: the consumer is not running, or another process received a message.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ack_then(messages, partial(_end, done))
        await done

    def ack_then(self, messages: PoppedMessage | Sequence[PoppedMessage], done: Done) -> None:
        """Acknowledge as :meth:`ack`, without a task: call ``done`` with the error or ``None``, and with the messages
        that are not acknowledged.

        :raises ClientStateError: the consumer is not running, or another process received a message.
        """
        self._demand_running()
        row = [messages] if isinstance(messages, PoppedMessage) else list(messages)
        for message in row:
            self._renewals.discard(message)
        if self._renewals.is_settled(row):
            self._acks.add(row, done)
        else:
            self._acks.add_after(self._renewals.settle(row), row, done)

    async def change_invisible(self, message: PoppedMessage, seconds: float) -> None:
        """Restart a message's invisible time: the group receives it again after ``seconds`` (0: at once).

        The message keeps its new receipt, and is no longer renewed.

        :raises ValueError: the time is not from 0 s to three days.
        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer for ``retry_s``.
        :raises ClientStateError: the consumer is not running, or another process received the message.
        """
        self._demand_running()
        check_invisible_time(seconds)
        self._renewals.discard(message)
        await self._renewals.settle([message])
        await self._requests.until_answered(partial(self._requests.change, message, round(seconds * 1000)))

    async def reject(self, message: PoppedMessage) -> None:
        """Store a message as a dead letter now, and then acknowledge it.

        Both requests are repeated while the broker does not answer, so the message is not lost. If an answer is lost,
        there may be two dead letters. If the consumer crashes in between, or the acknowledgement fails, the message is
        a dead letter and is received again. If this method fails, the message is no longer renewed.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer for ``retry_s``.
        :raises ClientStateError: the consumer is not running, or another process received the message.
        """
        self._demand_running()
        try:
            await self._requests.make_dead_letter(message)
        except BaseException:
            self._renewals.discard(message)
            raise
        await self.ack(message)

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat; many subscriptions are left out, because each pop has its own."""
        is_short = len(self._subscriptions) <= MAX_HEARTBEAT_TOPICS
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=list(self._subscriptions.values()) if is_short else [],
        )

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""
        return ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": self.heartbeat.consume_type},
            subscription_set=list(self._subscriptions.values()),
        )

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:  # noqa: ARG002
        """Return ``None``, because there is no listener."""
        return None


def _end(done: asyncio.Future[None], error: BaseException | None, _failed: Sequence[PoppedMessage]) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
