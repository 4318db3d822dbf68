"""A consumer that reads ahead in the background and returns messages when polled (``DefaultLitePullConsumer``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cometmq.client.background import Background
from cometmq.client.consumer.assignment_table import AssignmentTable
from cometmq.client.consumer.config import LitePullConfig
from cometmq.client.consumer.listener import ConsumeObservation
from cometmq.client.consumer.membership import Membership
from cometmq.client.consumer.offset_store import RemoteOffsets
from cometmq.client.consumer.pulling import Puller, QueueReader
from cometmq.client.consumer.running_info import running_info
from cometmq.client.consumer.subscription import ALL, TAG, check_expressions, subscription
from cometmq.client.errors import ClientStateError
from cometmq.client.group_client import GroupClient
from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.client.serialization import DecodedMessage, deserializer_of
from cometmq.client.steps import Steps
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.remoting.admin_bodies import ConsumerRunningInfo
from cometmq.remoting.bodies import ConsumerData, MessageQueue, SubscriptionData
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)

POLL_S: Final = 60.0
"""Duration in seconds of each poll during iteration; the next poll follows immediately."""


class LitePullConsumer(GroupClient):
    """Polls messages from subscribed topics (shared in the group) or from manually assigned queues.

    Call ``subscribe`` before or inside ``async with LitePullConsumer("g") as consumer:``, then ``poll``. Or iterate:
    ``async for message in consumer``. With auto commit, a message counts as consumed when the next poll begins, or when
    the ``async with`` block ends without an error.

    :param group: the consumer group.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param config: all other options.
    :param consume_hooks: called with the messages of each poll, and at the next poll.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param deserializer: sets the ``value`` of messages, as in :class:`~cometmq.client.PushConsumer`.
    :raises ValueError: the group's name is not allowed, or an address has no port.
    :raises TypeError: the deserializer is invalid.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        instance: ClientInstance | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        super().__init__(group, namesrv, instance, security)
        self._deserializer = None if deserializer is None else deserializer_of(deserializer)
        self.config = config or LitePullConfig()
        self.offsets = Offsets(self.instance, group=group)
        trace = self._begin_trace("CONSUME", self.config)
        if trace is not None:
            consume_hooks = (*consume_hooks, trace.consume_hook)
        clock = self.instance.clock
        self._observation = ConsumeObservation(group, consume_hooks, clock) if consume_hooks else None
        self._given: ConsumeMessageContext | None = None
        """The context that hooks received for the last poll."""
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._background = Background(f"the consumer of group {group}", self.instance.clock)
        self._store = RemoteOffsets(self.offsets, group, self.instance.outages, clock)
        spawn = self._background.spawn
        self._table = AssignmentTable(self.offsets, self._store, self.config, self._subscriptions, spawn)
        self._by_hand = False
        self._membership: Membership | None = None
        self._running = False
        self._choosing = asyncio.Lock()
        """A lock that keeps changes of topics and queues in call order while brokers are queried."""
        self._next_commit = 0.0

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(failed=kind is not None)

    async def start(self) -> None:
        """Start reading the subscribed topics; if there are none, wait for ``subscribe`` or ``assign``.

        :raises ClientStateError: the consumer was started before.
        :raises RouteNotFoundError: none of the subscribed topics exists.
        :raises BrokerError: a broker cannot filter by one of the expressions.
        """
        if self._running or self._ending is not None:
            raise ClientStateError("the consumer was already started", next_step="create a new consumer")
        self.instance.add_consumer(self.group, self)
        self._use.begin(partial(_end_forgotten, self._table, self._background))
        self._running = True
        self._arrived = asyncio.Event()
        puller = Puller(self.instance, self.group, stream=True)
        reader = QueueReader(puller, self.config, self.instance.clock, self.instance.outages, lite=True)
        self._table.start(reader, self._arrived)
        self._started_ms = self.instance.clock.now_ms()
        self._next_commit = self.instance.clock.monotonic() + self.config.auto_commit_interval_s
        async with self._choosing:
            if self._subscriptions:
                try:
                    await check_expressions(self.instance, self.group, self._subscriptions.values())
                    await self._join(self._subscriptions)
                except BaseException:
                    await self._close(failed=True)
                    raise

    async def _join(self, topics: Iterable[str]) -> None:
        """Become a member of the group."""
        membership = Membership(
            self.instance, self.group, self.config, self._table.assign, self._subscriptions, self._background.spawn
        )
        self._membership = membership
        try:
            await membership.start(topics)
        except BaseException:
            self._membership = None
            await membership.stop()
            raise

    async def close(self) -> None:
        """Commit offsets (with auto commit), leave the group, and close the consumer."""
        await self._close(failed=False)

    async def _close(self, *, failed: bool) -> None:
        if self._running or self._ending is not None:
            self._running = False
            await self._end_once(partial(self._end, failed=failed))

    async def _end(self, *, failed: bool) -> None:
        self._arrived.set()
        self._finish_last_poll(failed=failed)
        last = self._table.positions(processed_only=failed)
        self._table.close()
        if self._membership is not None:
            await self._membership.stop()
        if self.config.auto_commit:
            await self._commit_quietly(last)
            await self._table.wait_until_left()
        if self.trace is not None:
            await self.trace.close()
        await self._background.stop()
        await self.instance.remove(consumer_group=self.group)
        await self._use.end()

    # --- topics and queues ---

    async def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Read this member's share of a topic: all messages, or those that match tags (``TagA || TagB``) or SQL92.

        Before ``start`` this only records the subscription; ``start`` checks it.

        :raises RouteNotFoundError: no nameserver knows the topic.
        :raises BrokerError: a broker cannot filter by the expression; SQL92 needs its ``enablePropertyFilter``.
        :raises ClientStateError: queues were assigned by hand.
        """
        data = subscription(topic, expression, expression_type, self.instance.clock.now_ms())
        async with self._choosing:
            if self._by_hand:
                raise ClientStateError("queues were assigned manually", next_step="use either subscribe or assign")
            if not self._running:
                self._subscriptions[topic] = data
                return
            await check_expressions(self.instance, self.group, [data])
            await self.instance.routes.get_soon(topic)
            self._check_running()
            self._subscriptions[topic] = data
            if self._membership is None:
                await self._join([topic])
            else:
                self._table.read_again(topic)
                await self._membership.add(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        async with self._choosing:
            self._subscriptions.pop(topic, None)
            if self._membership is not None:
                await self._membership.remove(topic)

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str = ALL, *, expression_type: str = TAG
    ) -> None:
        """Read exactly these queues, regardless of other members; this replaces any earlier assignment.

        :raises ClientStateError: topics were subscribed.
        :raises BrokerError: a broker cannot filter by the expression.
        """
        chosen = set(queues)
        now_ms = self.instance.clock.now_ms()
        topics = sorted({queue.topic for queue in chosen})
        wanted = [subscription(topic, expression, expression_type, now_ms) for topic in topics]
        async with self._choosing:
            self._check_running()
            if self._subscriptions:
                raise ClientStateError(
                    "the consumer is subscribed to topics", next_step="use either subscribe or assign"
                )
            await check_expressions(self.instance, self.group, wanted)
            self._check_running()
            self._by_hand = True
            self._table.assign_by_hand(chosen, subscription("*", expression, expression_type, now_ms))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues being read."""
        return frozenset(self._table.queues)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of ``topic``, sorted.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        return (await self.instance.routes.refresh(topic)).read_queues

    # --- messages ---

    async def poll(self, timeout_s: float = 5.0, *, max_messages: int | None = None) -> list[MessageExt]:
        """Return the next messages, or an empty list if none arrive within ``timeout_s`` seconds.

        With auto commit, the messages of earlier polls are committed.
        """
        self._check_running()
        clock = self.instance.clock
        limit = max_messages or self.config.max_poll_messages
        self._end_last()
        if self._is_commit_due():
            await self._commit_quietly(self._table.positions(processed_only=True))
        deadline = clock.monotonic() + timeout_s
        while self._running:
            self._arrived.clear()
            messages = self._collect(limit)
            left = deadline - clock.monotonic()
            if messages or left <= 0:
                return messages
            timer = clock.call_later(left, self._arrived.set)
            try:
                await self._arrived.wait()
            finally:
                timer.cancel()
        return []

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Iterate over messages until the consumer is closed; each step polls one message.

        A step that is cancelled, for example by a time-out, consumes no message, and the next step continues.
        """
        self._check_running()
        return Steps(self._next)

    async def _next(self) -> MessageExt:
        self._check_loop()
        while self._running:
            self._end_last()
            # Most messages are there already: they need no further coroutine.
            batch = [] if self._is_commit_due() else self._collect(1)
            if batch or (batch := await self.poll(POLL_S, max_messages=1)):
                return batch[0]
        raise StopAsyncIteration

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[MessageExt]]:
        """Iterate over polls of up to ``max_messages`` messages until the consumer is closed."""
        self._check_running()
        return Steps(partial(self._next_batch, max_messages))

    async def _next_batch(self, max_messages: int | None) -> list[MessageExt]:
        while self._running:
            if batch := await self.poll(POLL_S, max_messages=max_messages):
                return batch
        raise StopAsyncIteration

    def _end_last(self) -> None:
        """Start a poll, marking the messages of the previous poll as consumed."""
        self._table.processed()
        self._finish_last_poll(failed=False)

    def _is_commit_due(self) -> bool:
        return self.config.auto_commit and self.instance.clock.monotonic() >= self._next_commit

    def _finish_last_poll(self, *, failed: bool) -> None:
        if self._observation is not None and self._given is not None:
            given, self._given = self._given, None
            self._observation.end(given, ConsumeReturnType.EXCEPTION if failed else ConsumeReturnType.SUCCESS)

    def _collect(self, limit: int) -> list[MessageExt]:
        """Return the arrived messages for a poll."""
        messages = self._table.take(limit)
        if messages and self._observation is not None:
            self._given = self._observation.begin(messages)
        if self._deserializer is not None:
            return [DecodedMessage(*one.place, one.broker_name, deserializer=self._deserializer) for one in messages]
        return messages

    def give_back(self, messages: Iterable[MessageExt]) -> None:
        """Put back undelivered messages from the last poll, so that the next poll returns them.

        So a poll that is cancelled at its end loses no message. Messages of queues that were left or moved since that
        poll are not returned.
        """
        self._finish_last_poll(failed=True)
        self._table.give_back(messages)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages from these queues until :meth:`resume` is called."""
        for queue in queues:
            self._table.of(queue).paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume returning messages from these queues."""
        for queue in queues:
            self._table.of(queue).paused = False
        self._arrived.set()

    # --- positions ---

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset at which the next poll starts, or ``None`` while it is unknown."""
        return self._table.of(queue).position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``, which must be within the queue's range of offsets.

        :raises ValueError: the offset is outside this range.
        """
        offsets = self.offsets

        async def checked() -> int:
            low, high = await offsets.min(queue), await offsets.max(queue)
            if not low <= offset <= high:
                raise ValueError(f"offset {offset} is not between {low} and {high}, the range of {queue}")
            return offset

        await self._table.seek(queue, checked)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first stored message."""
        await self._table.seek(queue, partial(self.offsets.min, queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that arrives."""
        await self._table.seek(queue, partial(self.offsets.max, queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after a time in milliseconds."""
        await self._table.seek(queue, partial(self.offsets.at_time, queue, timestamp_ms))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or ``None`` if there is none."""
        return await self.offsets.committed(self.group, queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the positions, or the given ``offsets``, and wait for the brokers to confirm."""
        chosen = self._table.positions(processed_only=False) if offsets is None else offsets
        await asyncio.gather(*(self._store.commit(queue, at) for queue, at in chosen.items()))

    async def _commit_quietly(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._next_commit = self.instance.clock.monotonic() + self.config.auto_commit_interval_s
        try:
            await self.commit(offsets)
        except CometMQError as error:
            log.warning("cannot commit the offsets of group %s: %s", self.group, error)

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            consume_from_where=self.config.consume_from_where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""
        return running_info(self.instance, self.config, self.heartbeat, self._started_ms)

    async def consume_directly(self, message: MessageExt) -> None:
        """Return ``None`` because there is no listener."""

    def members_changed(self) -> None:
        """Rebalance because a member has joined or left the group."""
        if self._membership is not None:
            self._membership.soon()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets because an administrator has reset them."""
        for queue, offset in offsets.items():
            if queue in self._table.queues:
                self._table.move_to(queue, offset)
            else:
                self._store.forget(queue)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return the position in each queue of a topic."""
        known = self._table.positions(processed_only=False)
        return {queue: at for queue, at in known.items() if queue.topic == topic}

    def _check_running(self) -> None:
        if not self._running:
            raise ClientStateError("the consumer is not running", next_step="use the consumer inside `async with`")


async def _end_forgotten(table: AssignmentTable, background: Background) -> None:
    """Stop the readers of a garbage-collected consumer without committing anything."""
    table.close()
    await background.stop()
