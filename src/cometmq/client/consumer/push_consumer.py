"""A consumer that reads in the background and passes messages to a listener or a loop (``DefaultMQPushConsumer``)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cometmq.client.background import Background
from cometmq.client.consumer.config import MessageModel, PushConfig
from cometmq.client.consumer.consume_service import ConsumeService
from cometmq.client.consumer.failures import Failures, OrderedFailures
from cometmq.client.consumer.listener import ConsumeObservation, Listener, consume_directly, decoding, observed
from cometmq.client.consumer.membership import Membership
from cometmq.client.consumer.message_stream import Batch, MessageStream, ReceivedMessage
from cometmq.client.consumer.offset_store import LocalOffsets, RemoteOffsets
from cometmq.client.consumer.ordered_service import OrderedConsumeService
from cometmq.client.consumer.process_queue_table import ProcessQueueTable
from cometmq.client.consumer.running_info import Activity, process_queue_info, running_info
from cometmq.client.consumer.subscription import ALL, TAG, check_expressions, subscription
from cometmq.client.errors import ClientStateError
from cometmq.client.group_client import GroupClient
from cometmq.client.hooks import ConsumeMessageHook
from cometmq.client.instance import ClientInstance, new_client_id
from cometmq.client.offsets import Offsets
from cometmq.client.serialization import deserializer_of, place_of
from cometmq.client.steps import Steps
from cometmq.client.stop_signals import STOP_SIGNALS
from cometmq.clock import wait_for
from cometmq.message.message import MessageExt
from cometmq.message.names import retry_topic
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies import ConsumerData, MessageQueue, SubscriptionData
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)

_CANCELLED_S: Final = 1.0
"""Number of seconds for which ``close`` waits for cancelled calls of an orderly consumer."""
_LOCK_S: Final = 60.0
"""Number of seconds after which a lock that is not renewed has expired at its broker."""


class PushConsumer(GroupClient):
    """A member of a consumer group that passes its messages to a listener, or to an ``async for`` loop.

    Await ``subscribe`` first, then ``run``, or use ``async with`` (or ``start``). A message is consumed when the
    listener returns. When it raises or returns a failure (see :mod:`cometmq.client.consumer.listener`), the message is
    delivered again with the broker's delays, and is sent to the dead-letter topic after ``max_reconsume_times``. With
    ``orderly`` in the configuration the same member retries it, and its queue waits (``docs/ordered.md``).

    If there is no listener, iterate: ``async for message in consumer``, and call ``message.ack()`` (see
    :mod:`cometmq.client.consumer.message_stream`). If an ``Exception`` ends the ``async with`` block, the open messages
    of the loop's last step count as failed; all other open messages are delivered again, as after a crash.

    :param group: the consumer group; all its members have the same subscriptions and strategy.
    :param listener: a function of a sequence of messages, plain (called in threads) or ``async``; None to iterate.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param config: all other options.
    :param instance: connections to share with other clients; by default it creates its own.
    :param consume_hooks: called around every call of the listener, see :mod:`cometmq.client.hooks`.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param deserializer: sets the ``value`` of messages: a type to read from JSON (a pydantic or msgspec model, a
        dataclass, ``dict``), ``bytes``, or a function of bytes.
    :raises ValueError: the group's name is not allowed, an address has no port, or an option needs a listener.
    :raises TypeError: the deserializer is invalid.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        namesrv: str | None = None,
        *,
        config: PushConfig | None = None,
        instance: ClientInstance | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self.config = config or PushConfig()
        if listener is None:
            _check_for_loops(self.config)
        self._broadcast = self.config.message_model is MessageModel.BROADCASTING
        # The offsets of a broadcasting consumer are found again by its client id, so it must not change.
        client_id = new_client_id("DEFAULT") if self._broadcast else None
        super().__init__(group, namesrv, instance, security, client_id=client_id)
        self.offsets = Offsets(self.instance, group=group)
        trace = self._begin_trace("CONSUME", self.config)
        if trace is not None:
            consume_hooks = (*consume_hooks, trace.consume_hook)
        self._deserializer = None if deserializer is None else deserializer_of(deserializer)
        clock = self.instance.clock
        self._observation = ConsumeObservation(group, consume_hooks, clock) if consume_hooks else None
        if listener is not None:
            if self._deserializer is not None:
                listener = decoding(listener, self._deserializer)
            if self._observation is not None:
                listener = observed(listener, self._observation)
        self._listener = listener
        self._stream: MessageStream | None = None
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._local = LocalOffsets(self.config.offset_store_dir, self.instance.client_id, group)
        store = self._local if self._broadcast else RemoteOffsets(self.offsets, group, self.instance.outages, clock)
        self._background = Background(f"the consumer of group {group}", self.instance.clock)
        spawn = self._background.spawn
        self._table = ProcessQueueTable(self.instance, group, self.config, self._subscriptions, store, spawn)
        self._choosing = asyncio.Lock()
        """A lock that keeps subscription changes in call order while brokers are queried."""
        self._state = "not started"

    # --- start and end ---

    async def start(self) -> None:
        """Join the group and start consuming.

        :raises ClientStateError: there is no subscription, or the consumer was started before.
        :raises RouteNotFoundError: none of the topics exists.
        :raises BrokerError: a broker cannot filter by one of the expressions (see :meth:`subscribe`).
        """
        if self._state != "not started":
            raise ClientStateError(
                f"the consumer of group {self.group} is {self._state}", next_step="create a new consumer"
            )
        if not self._subscriptions:
            raise ClientStateError("the consumer has no subscriptions", next_step="call subscribe before start")
        clock = self.instance.clock
        if not self._broadcast:
            retries = retry_topic(self.group)
            self._subscriptions[retries] = subscription(retries, ALL, TAG, clock.now_ms())
        self.instance.add_consumer(self.group, self, works_alone=self._listener is not None)
        self._use.begin(self._background.stop)
        self._state = "running"
        self._started_ms = clock.now_ms()
        self._activity = Activity(clock)
        self._stopped = asyncio.Event()
        self._closed = asyncio.Event()
        self._service = self._new_service()
        self._table.start(self._service.submit)
        self._membership = Membership(
            self.instance,
            self.group,
            self.config,
            self._table.assign,
            self._subscriptions,
            self._background.spawn,
            broadcast=self._broadcast,
        )
        try:
            if self._broadcast:
                await self._local.start()
            report = partial(_report, self._table, self._activity)
            self._background.every(self.config.persist_interval_s, report, "reports of offsets")
            async with self._choosing:
                await check_expressions(self.instance, self.group, self._subscriptions.values())
                await self._membership.start(self._subscriptions)
        except BaseException:
            await self.close()
            raise

    def _new_service(self) -> ConsumeService | OrderedConsumeService | MessageStream:
        config = self.config
        failures = Failures(self.instance, self.group, config, self._activity, self._background.spawn)
        if self._listener is None:
            self._stream = MessageStream(
                failures.handle_verdict,
                orderly=config.orderly,
                deserializer=self._deserializer,
                observation=self._observation,
            )
        if config.orderly:
            ordered = OrderedFailures(self.instance, self.group, config, self._activity)
            return OrderedConsumeService(self._called, config, self.instance, self._table, ordered)
        if not self._broadcast and math.isfinite(config.consume_timeout_s):
            self._background.spawn(failures.watch(self._table.queues.values))
        if self._stream is not None:
            return self._stream
        return ConsumeService(self._called, config.consume_concurrency, self.instance, failures.handle_verdict)

    @property
    def _called(self) -> Listener:
        """Return the listener, or the stream's function if there is no listener."""
        listener = self._listener if self._stream is None else self._stream.listen
        assert listener is not None
        return listener

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._stream is not None and kind is not None and issubclass(kind, Exception):
            self._stream.fail_last(lambda message: log.error("the loop failed while consuming %s", place_of(message)))
        await self.close()
        await self._closed.wait()  # another caller may be closing the consumer

    async def close(self) -> None:
        """Finish running calls, report offsets, and leave the group. A second call returns immediately.

        Calls that run longer than ``handover_wait_s`` are cancelled if the listener is ``async``. Their messages, and
        those of calls in threads, which cannot be stopped, are delivered again to another member. An orderly consumer
        unlocks a queue as soon as its call has ended. This may be after ``close``, if the call is in a thread or does
        not end with its cancellation: the connections then stay open until it has ended. If the event loop ends
        first, or the call takes very long, the lock expires at the broker within 60 s.
        """
        if self._state != "running":
            return
        self._state = "closed"
        self._stopped.set()
        try:
            await self._close()
        finally:
            self._closed.set()

    async def _close(self) -> None:
        await self._membership.stop()
        if self._stream is not None:
            self._stream.close()
        await self._table.close()
        self._service.close()
        was_held = bool(self._table.held)
        if was_held:
            self.instance.drop_consumer(self.group)
            with suppress(TimeoutError):
                await wait_for(self.instance.clock, _CANCELLED_S, self._table.release_held())
        if self.trace is not None:
            await self.trace.close()
        await self._background.stop()
        if self._table.held:
            self._use.end_after(self._unregister_later())
            return
        if not (was_held and self.instance.has_consumer(self.group)):
            await self.instance.remove(consumer_group=self.group)
        await self._use.end()

    async def _unregister_later(self) -> None:
        """Leave the group after the last calls have ended or the locks have expired, since leaving releases locks."""
        with suppress(TimeoutError):
            await wait_for(self.instance.clock, _LOCK_S, self._table.release_held())
        if not self.instance.has_consumer(self.group):  # another consumer of the group may use the instance by now
            await self.instance.remove(consumer_group=self.group)

    async def run(self) -> None:
        """Start, consume until stopped (by a signal, :meth:`stop`, :meth:`close` or cancellation), then close.

        A running consumer is not started again. Signals that the program handles itself are left to the program.

        :raises ClientStateError: there is no listener, no subscription, or the consumer is closed.
        :raises CometMQError: as :meth:`start`.
        """
        if self._listener is None:
            raise ClientStateError(
                f"the consumer of group {self.group} has no listener to run",
                next_step="pass a listener, or iterate inside `async with`: `async for message in consumer`",
            )
        if self._state != "running":
            await self.start()
        try:
            with STOP_SIGNALS.calling(partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)):
                await self._stopped.wait()
        finally:
            await self.close()
            await self._closed.wait()

    def stop(self) -> None:
        """Make :meth:`run` close the consumer and return; call it on the consumer's event loop."""
        self._stopped.set()

    # --- iteration ---

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed.

        A step that is cancelled, for example by a time-out, consumes no message, and the next step continues.
        """
        return Steps(self._next)

    async def _next(self) -> ReceivedMessage:
        if batch := await self.receive(1):
            return batch[0]
        raise StopAsyncIteration

    def batches(self, max_messages: int = 32) -> AsyncIterator[Batch]:
        """Iterate over batches of messages that have arrived until the consumer is closed.

        A batch contains messages of several queues. For an orderly consumer it contains at most one message of each
        queue.
        """
        return Steps(partial(self._next_batch, max_messages))

    async def _next_batch(self, max_messages: int) -> Batch:
        if batch := await self.receive(max_messages):
            return batch
        raise StopAsyncIteration

    async def receive(self, max_messages: int = 1) -> Batch:
        """Wait for messages; return up to ``max_messages`` of them, or an empty list when the consumer closes.

        :raises ClientStateError: the consumer has a listener, or is not running.
        """
        if self._stream is None:
            wrong = "has a listener" if self._listener is not None else f"is {self._state}"
            step = (
                "create the consumer without a listener"
                if self._listener is not None
                else "use the consumer inside `async with`"
            )
            raise ClientStateError(
                f"the consumer of group {self.group} {wrong} and cannot be iterated over", next_step=step
            )
        if max_messages < 1:
            raise ValueError(f"max_messages must be 1 or more, not {max_messages}")
        return await self._stream.next(max_messages)

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put back undelivered messages from the last step, so that the next step returns them."""
        if self._stream is not None:
            self._stream.give_back(messages)

    # --- subscriptions ---

    async def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Consume all messages of ``topic``, or those that match tags (``TagA || TagB``) or an SQL92 expression.

        Before ``start`` this only records the subscription; ``start`` checks it. SQL92 needs brokers with
        ``enablePropertyFilter``. A topic that was subscribed before keeps its subscription if the new subscription is
        refused.

        :raises ValueError: the expression is empty or of an unknown type.
        :raises BrokerError: the consumer runs, and a broker cannot filter by the expression.
        """
        wanted = subscription(topic, expression, expression_type, self.instance.clock.now_ms())
        async with self._choosing:
            if self._state == "running":
                await check_expressions(self.instance, self.group, [wanted])
            self._subscriptions[topic] = wanted
            if self._state == "running":  # the consumer may have been closed in the meantime
                self._table.leave_topic(topic)
                await self._membership.add(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``."""
        async with self._choosing:
            if self._subscriptions.pop(topic, None) is not None and self._state == "running":
                await self._membership.remove(topic)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this member is reading, except its retry topic's queues."""
        retries = retry_topic(self.group)
        return frozenset(queue for queue in self._table.queues if queue.topic != retries)

    @property
    def cached_count(self) -> int:
        """Return the number of messages that were pulled but not consumed."""
        return sum(process_queue.cached_count for process_queue in self._table.queues.values())

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.config.message_model.value,
            consume_from_where=self.config.consume_from_where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """Rebalance because a member has joined or left the group."""
        if self._state == "running":
            self._membership.soon()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets because an administrator has reset them."""
        self._table.reset(offsets)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offset of each queue in a topic."""
        return {queue: at for queue, at in self._table.positions().items() if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""
        config, queues, locks = self.config, self._table.queues, self._table.locks
        info = running_info(
            self.instance,
            config,
            self.heartbeat,
            self._started_ms,
            orderly=config.orderly,
            threads=config.consume_concurrency,
        )
        self._activity.sample(queues)
        for queue, process_queue in queues.items():
            locked_ms = self._started_ms if locks is None else locks.held_ms(queue)
            info.mq_table[queue] = process_queue_info(process_queue, locked_ms, *self._activity.times(queue))
        info.status_table |= {topic: self._activity.status(topic) for topic in sorted(self._subscriptions)}
        return info

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Consume one message on behalf of an administrator."""
        instance = self.instance
        return await consume_directly(
            self._called, message, instance.clock, instance.is_ending, orderly=self.config.orderly
        )


async def _report(table: ProcessQueueTable, activity: Activity) -> None:
    activity.sample(table.queues)
    await table.report(table.positions())


def _check_for_loops(config: PushConfig) -> None:
    if config.consume_batch_size != 1:
        raise ValueError("consume_batch_size is only for listeners; pass max_messages to batches() instead")
    if not config.auto_commit:
        raise ValueError("auto_commit=False requires a listener that returns COMMIT and ROLLBACK")
