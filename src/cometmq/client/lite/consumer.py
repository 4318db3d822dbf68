"""A consumer of lite topics over remoting, as Apache's ``LitePushConsumer`` and ``LiteSimpleConsumer`` over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cometmq.client.background import Background
from cometmq.client.consumer.listener import Listener, consume_directly, decoding
from cometmq.client.errors import ClientError, ClientStateError, RemotingError
from cometmq.client.instance import ClientInstance
from cometmq.client.lite.config import MAX_MESSAGES, LiteTopicConfig, StartAt
from cometmq.client.lite.listening import LiteListening
from cometmq.client.lite.polls import LitePolls
from cometmq.client.lite.requests import LiteMessage, LiteRequests
from cometmq.client.lite.subscription import LiteSubscription
from cometmq.client.popping.consumer import PoppingConsumer
from cometmq.client.serialization import deserializer_of
from cometmq.client.steps import Steps
from cometmq.client.stop_signals import STOP_SIGNALS
from cometmq.clock import wait_for
from cometmq.message.message import MessageExt
from cometmq.message.names import check_topic
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.security import Security

_MODEL: Final = "LITE_SELECTIVE"


class LiteTopicConsumer(PoppingConsumer):
    """A member of a consumer group that reads lite topics of one parent topic.

    ``subscribe`` to lite topics before or after ``start``; ``async with`` starts and closes the consumer. Messages of
    one lite topic are received in their order, and by one member at a time: the next ones are received when those
    before are acknowledged. A message that is not acknowledged is received again, up to the group's ``retryMaxTimes``,
    and is then moved to the dead-letter topic.

    Without a listener, call :meth:`receive`, or iterate: ``async for message in consumer``. Then await
    :meth:`ack`. With a listener, :meth:`run` calls it with one message at a time, and acknowledges the message when it
    returns.

    :param group: the consumer group, which is bound to the parent topic (``Admin.create_lite_group``).
    :param topic: the parent topic, of the type LITE (``Admin.create_lite_topic``).
    :param listener: a function of a sequence with one message, plain (called in threads) or ``async``.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param config: all other options.
    :param on_lost: called with each lite topic that another member of an exclusive group takes.
    :param instance: connections to share with other clients; by default it creates its own.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param deserializer: sets the ``value`` of messages; see :class:`~cometmq.client.PushConsumer`.
    :raises ValueError: a name is not allowed, or an address has no port.
    :raises TypeError: the deserializer is invalid.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        listener: Listener | None = None,
        namesrv: str | None = None,
        *,
        config: LiteTopicConfig | None = None,
        on_lost: Callable[[str], object] | None = None,
        instance: ClientInstance | None = None,
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        wrong = check_topic(topic)
        if wrong is not None:
            raise ValueError(wrong)
        self.config = config or LiteTopicConfig()
        self.topic = topic
        super().__init__(group, namesrv, instance, security)
        decoder = None if deserializer is None else deserializer_of(deserializer)
        self._listener = listener if listener is None or decoder is None else decoding(listener, decoder)
        self._requests = LiteRequests(self.instance, group, topic, self.config, decoder)
        self._subscription = LiteSubscription(self._requests, on_lost)
        self._background = Background(f"the consumer of lite topics of group {group}", self.instance.clock)

    # --- start and end ---

    async def start(self) -> None:
        """Join the group, and subscribe to the lite topics.

        :raises ClientStateError: the consumer was started before.
        :raises RouteNotFoundError: the parent topic does not exist.
        :raises BrokerError: a broker refuses, for example because the group is not bound to the topic.
        """
        self._demand_not_started()
        self.instance.add_consumer(self.group, self, works_alone=self._listener is not None)
        self.instance.lite_losses[self.group] = self._subscription.lost
        self._use.begin(self._background.stop)
        self._state = "running"
        self._started_ms = self.instance.clock.now_ms()
        self._stopped = asyncio.Event()
        self._polls = LitePolls(self._requests)
        self._is_repeating = False
        self.instance.remoting.on_open.append(self._connected)
        self._requests.on_new_master = self._connected
        try:
            await self.instance.routes.get(self.topic)
            await self.instance.send_heartbeats()
            await self._subscription.begin()
        except BaseException:
            await self.close()
            raise
        self._background.every(self.config.sync_s, self._subscription.sync, "repeating subscriptions to lite topics")

    async def close(self) -> None:
        """End the subscriptions and leave the group; messages that were received but not taken are received again."""
        if self._state == "running":
            self._state = "closed"
            self._stopped.set()
            await self._end_once(self._close)
        elif self._ending is not None:
            await self._end_once(self._close)

    def _connected(self, address: str) -> None:
        """Repeat the subscriptions now: a broker that was restarted, or is the new master, may not know them."""
        is_broker = any(address in broker.values() for broker in self.instance.routes.brokers.values())
        if is_broker and self._subscription.is_running and not self._is_repeating:
            self._is_repeating = True
            self._background.spawn(self._repeat(), name="repeat subscriptions to lite topics")

    async def _repeat(self) -> None:
        self._is_repeating = False
        await self._subscription.sync()

    async def _close(self) -> None:
        self.instance.remoting.on_open.remove(self._connected)
        for message in await self._polls.close():
            try:
                await self._requests.hide(message, 0, counts=False)
            except (ClientError, RemotingError):
                break  # the broker delivers them when their time is over
        await self._background.stop()
        if self._subscription.is_running:
            await self._subscription.end()
        self.instance.lite_losses.pop(self.group, None)
        await self.instance.remove(consumer_group=self.group)
        await self._use.end()

    async def run(self) -> None:
        """Start, pass messages to the listener until stopped (by a signal, :meth:`stop` or cancellation), then close.

        :raises ClientStateError: there is no listener, or the consumer is closed.
        :raises CometMQError: as :meth:`start`.
        """
        if self._listener is None:
            raise ClientStateError(
                f"the consumer of group {self.group} has no listener to run",
                next_step="pass a listener, or iterate inside `async with`: `async for message in consumer`",
            )
        if self._state != "running":
            await self.start()
        listening = LiteListening(self._listener, self._requests)
        try:
            with STOP_SIGNALS.calling(partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)):
                while messages := await self._take(MAX_MESSAGES):
                    await listening.pass_on(messages)
        finally:
            await listening.close()
            await self.close()

    def stop(self) -> None:
        """Make :meth:`run` close the consumer and return; call it on the consumer's event loop."""
        self._stopped.set()

    # --- subscriptions ---

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which the consumer subscribes."""
        return frozenset(self._subscription.names)

    async def subscribe(self, lite_topic: str, *, start: StartAt | None = None) -> None:
        """Read a lite topic; it need not exist yet.

        :param start: where the group starts to read; by default it continues. Only for a running consumer.
        :raises ValueError: the name is not allowed.
        :raises ClientStateError: ``start`` is given, and the consumer is not running.
        :raises BrokerError: a broker refuses, for example because there are too many lite topics.
        """
        if start is not None and self._state != "running":
            raise ClientStateError("the consumer is not running", next_step="call start before subscribe with start=")
        await self._subscription.add(lite_topic, start)

    async def unsubscribe(self, lite_topic: str) -> None:
        """Stop reading a lite topic."""
        await self._subscription.remove(lite_topic)

    # --- messages ---

    async def receive(self, max_messages: int = 32, *, wait_s: float | None = None) -> list[LiteMessage]:
        """Wait for messages; return up to ``max_messages`` of them, or an empty list when the consumer closes.

        :param wait_s: seconds to wait for messages, after which an empty list is returned; by default, wait until
            there are some.
        :raises ClientStateError: the consumer is not running, or has a listener.
        """
        if self._state != "running" or self._listener is not None:
            wrong = "has a listener" if self._listener is not None else f"is {self._state}"
            raise ClientStateError(
                f"the consumer of group {self.group} {wrong} and cannot receive messages",
                next_step="use a consumer without a listener inside `async with`",
            )
        if max_messages < 1:
            raise ValueError(f"max_messages must be 1 or more, not {max_messages}")
        return await self._take(max_messages, wait_s)

    async def _take(self, max_messages: int, wait_s: float | None = None) -> list[LiteMessage]:
        """Take messages; return none once the consumer was stopped or the time is over."""
        taking = asyncio.get_running_loop().create_task(self._polls.take(max_messages))
        stopping = asyncio.get_running_loop().create_task(self._stopped.wait())
        waiting = asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            with suppress(TimeoutError):
                await (waiting if wait_s is None else wait_for(self.instance.clock, wait_s, waiting))
            return taking.result() if taking.done() else []
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                self.give_back(taking.result())
            raise
        finally:
            taking.cancel()
            stopping.cancel()

    def give_back(self, messages: Iterable[LiteMessage]) -> None:
        """Put back undelivered messages from the last step, so that the next step returns them."""
        self._polls.ready.extendleft(reversed(list(messages)))

    def __aiter__(self) -> AsyncIterator[LiteMessage]:
        """Iterate over messages until the consumer is closed; acknowledge each with :meth:`ack`."""
        return Steps(self._next)

    async def _next(self) -> LiteMessage:
        if messages := await self.receive(1):
            return messages[0]
        raise StopAsyncIteration

    async def ack(self, message: LiteMessage) -> None:
        """Acknowledge a message: the group has consumed it.

        :raises BrokerError: the broker refuses, for example because the message's time is over.
        :raises RemotingError: the broker does not answer.
        """
        await self._requests.ack(message)

    async def retry(self, message: LiteMessage, after_s: float = 0.0) -> None:
        """Receive a message, and with it those behind it in its lite topic, again after some seconds.

        :raises BrokerError: the broker refuses, for example because the message's time is over.
        :raises RemotingError: the broker does not answer.
        """
        await self._requests.hide(message, after_s)

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        subscription = SubscriptionData(topic=self.topic, sub_string="*", sub_version=self._started_ms)
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY" if self._listener is not None else "CONSUME_ACTIVELY",
            message_model=_MODEL,
            subscription_data_set=[subscription],
        )

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""
        return ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": self.heartbeat.consume_type, "lite_topics": str(len(self.lite_topics))},
            subscription_set=self.heartbeat.subscription_data_set,
        )

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:
        """Consume one message on behalf of an administrator; return ``None`` if there is no listener."""
        if self._listener is None:
            return None
        instance = self.instance
        return await consume_directly(self._listener, message, instance.clock, instance.is_ending, orderly=True)
