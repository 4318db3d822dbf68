"""Reads ahead in the background and hands out messages when asked (``DefaultLitePullConsumer``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from cometmq.client.assignment import Assignment
from cometmq.client.consume_observation import ConsumeObservation
from cometmq.client.consumer_config import LitePullConfig
from cometmq.client.errors import ClientStateError
from cometmq.client.expression_check import check_expressions
from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType
from cometmq.client.instance import ClientInstance
from cometmq.client.membership import Membership
from cometmq.client.offsets import Offsets
from cometmq.client.pulling import Puller
from cometmq.client.reader import Budget, read_queue
from cometmq.client.running_info import running_info
from cometmq.client.starting_point import starting_point
from cometmq.client.subscription import ALL, TAG, subscription
from cometmq.client.trace import MessageTrace
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.names import check_group
from cometmq.remoting.bodies import ConsumerData, ConsumerRunningInfo, MessageQueue, SubscriptionData
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)


class LitePullConsumer:
    """Polls messages of subscribed topics (shared in the group), or of queues assigned by hand.

    ``async with LitePullConsumer("g") as consumer: await consumer.subscribe("topic")``, then ``poll``.
    With auto commit a message counts as done at the poll after the one that gave it, and when the
    ``async with`` block ends without an error.

    :param group: the consumer group.
    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param config: everything else.
    :param consume_hooks: see what each poll gives, and at the next one that it is done.
    :param security: credentials and TLS of its own instance; default: what the environment says.
    :raises ValueError: the group's name is not allowed, or an address has no port.
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
    ) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise ValueError(wrong)
        self.group = group
        self.config = config or LitePullConfig()
        self.instance = ClientInstance.given_or_new(instance, namesrv, security)
        self.offsets = Offsets(self.instance)
        self.trace: MessageTrace | None = None
        """The trace of this consumer, with ``enable_msg_trace``."""
        if self.config.enable_msg_trace:
            self.trace = MessageTrace(self.instance, group, "CONSUME", self.config.customized_trace_topic)
            consume_hooks = (*consume_hooks, self.trace.consume_hook)
        clock = self.instance.clock
        self._observation = ConsumeObservation(group, consume_hooks, clock) if consume_hooks else None
        self._given: ConsumeMessageContext | None = None
        """What hooks have seen of the last poll."""
        self._puller = Puller(self.instance, group, stream=True)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._by_hand: SubscriptionData | None = None
        self._membership: Membership | None = None
        self._running = False
        self._changing = asyncio.Lock()
        """Of the assignments: a rebalance and an unsubscribe may come together."""
        self._next_commit = 0.0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(failed=kind is not None)

    async def start(self) -> None:
        """Make ready; nothing is read before ``subscribe`` or ``assign``."""
        if self._running:
            raise ClientStateError("the consumer was started before")
        self._running = True
        self._arrived = asyncio.Event()
        self._budget = Budget(self.config.pull_threshold_bytes)
        self.instance.acquire()
        self.instance.add_consumer(self.group, self)
        self._started_ms = self.instance.clock.now_ms()
        self._next_commit = self.instance.clock.monotonic() + self.config.auto_commit_interval_s

    async def close(self) -> None:
        """Commit (with auto commit), leave the group, close."""
        await self._close(failed=False)

    async def _close(self, *, failed: bool) -> None:
        if not self._running:
            return
        self._running = False
        self._done_with_last(failed=failed)
        if self._membership is not None:
            await self._membership.stop()
        if self.config.auto_commit:
            await self._commit_quietly(processed_only=failed)
        for assignment in list(self._assignments.values()):
            await assignment.stop()
        if self.trace is not None:
            await self.trace.close()
        await self.instance.remove(consumer_group=self.group)
        await self.instance.release()

    # --- what is read ---

    async def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Read this member's share of a topic: all, by tags (``TagA || TagB``), or by SQL92 on properties.

        :raises RouteNotFoundError: nobody knows the topic.
        :raises BrokerError: a broker cannot filter by the expression; SQL92 needs its ``enablePropertyFilter``.
        :raises ClientStateError: queues were assigned by hand.
        """
        self._demand_running()
        if self._by_hand is not None:
            raise ClientStateError("queues were assigned by hand", next_step="use either subscribe or assign")
        now_ms = self.instance.clock.now_ms()
        data = subscription(topic, expression, expression_type, now_ms)
        await check_expressions(self.instance, self.group, [data])
        self._subscriptions[topic] = data
        if self._membership is None:
            membership = Membership(
                self.instance,
                self.group,
                self.config.allocate_strategy,
                self.config.rebalance_interval_s,
                self._assigned,
                broadcast=False,
            )
            await membership.start([topic])
            self._membership = membership
        else:
            await self.instance.routes.get_soon(topic)
            await self._membership.add(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        self._subscriptions.pop(topic, None)
        if self._membership is not None:
            await self._membership.remove(topic)

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str = ALL, *, expression_type: str = TAG
    ) -> None:
        """Read exactly these queues, whoever else does; replaces an earlier assignment.

        :raises ClientStateError: topics were subscribed.
        :raises BrokerError: a broker cannot filter by the expression.
        """
        self._demand_running()
        if self._subscriptions:
            raise ClientStateError("topics were subscribed", next_step="use either subscribe or assign")
        chosen = set(queues)
        now_ms = self.instance.clock.now_ms()
        topics = sorted({queue.topic for queue in chosen})
        wanted = [subscription(topic, expression, expression_type, now_ms) for topic in topics]
        await check_expressions(self.instance, self.group, wanted)
        self._by_hand = subscription("*", expression, expression_type, now_ms)
        async with self._changing:
            await self._change(set(self._assignments), chosen)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are read now."""
        return frozenset(self._assignments)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of ``topic`` that can be read, sorted.

        :raises RouteNotFoundError: nobody knows it.
        """
        return (await self.instance.routes.refresh(topic)).read_queues

    # --- messages ---

    async def poll(self, timeout_s: float = 5.0, *, max_messages: int | None = None) -> list[MessageExt]:
        """The next messages; empty when none arrives within ``timeout_s`` seconds.

        Commits, with auto commit, what earlier polls gave.
        """
        self._demand_running()
        clock = self.instance.clock
        limit = max_messages or self.config.max_poll_messages
        for assignment in self._assignments.values():
            assignment.processed = assignment.position
        self._done_with_last(failed=False)
        if self.config.auto_commit and clock.monotonic() >= self._next_commit:
            await self._commit_quietly(processed_only=True)
        deadline = clock.monotonic() + timeout_s
        while True:
            self._arrived.clear()
            messages: list[MessageExt] = []
            self._collect(limit, messages)
            if messages:
                if self._observation is not None:
                    self._given = self._observation.begin(messages)
                return messages
            left = deadline - clock.monotonic()
            if left <= 0:
                return messages
            timer = clock.call_later(left, self._arrived.set)
            try:
                await self._arrived.wait()
            finally:
                timer.cancel()

    def _done_with_last(self, *, failed: bool) -> None:
        if self._observation is not None and self._given is not None:
            given, self._given = self._given, None
            self._observation.end(given, ConsumeReturnType.EXCEPTION if failed else ConsumeReturnType.SUCCESS)

    def _collect(self, limit: int, into: list[MessageExt]) -> None:
        for queue in list(self._assignments):
            assignment = self._assignments[queue]
            if assignment.paused or len(into) >= limit:
                continue
            before = len(into)
            assignment.hand_out(limit - before, into)
            if len(into) > before:  # others come first the next time
                self._assignments[queue] = self._assignments.pop(queue)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give no messages of these queues until :meth:`resume`."""
        for queue in queues:
            self._of(queue).paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Give messages of these queues again."""
        for queue in queues:
            self._of(queue).paused = False
        self._arrived.set()

    # --- positions ---

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that the next poll goes on at; ``None`` before it is known."""
        return self._of(queue).position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``, which must be within what the queue holds.

        :raises ValueError: it is not.
        """
        self._of(queue)
        low, high = await self.offsets.min(queue), await self.offsets.max(queue)
        if not low <= offset <= high:
            raise ValueError(f"offset {offset} is not within {low} and {high} of {queue}")
        await self._go_to(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message still there."""
        await self._go_to(queue, await self.offsets.min(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message that arrives."""
        await self._go_to(queue, await self.offsets.max(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the message stored nearest to a time, in ms."""
        await self._go_to(queue, await self.offsets.at_time(queue, timestamp_ms))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on in ``queue``; ``None`` when the broker knows nothing of it."""
        return await self.offsets.committed(self.group, queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Report positions, or the ``offsets`` given, and wait until the brokers have confirmed them."""
        chosen = self._positions(processed_only=False) if offsets is None else offsets
        await asyncio.gather(*(self.offsets.commit(self.group, queue, at) for queue, at in chosen.items()))

    def _positions(self, *, processed_only: bool) -> dict[MessageQueue, int]:
        chosen = {
            queue: assignment.processed if processed_only else assignment.position
            for queue, assignment in self._assignments.items()
        }
        return {queue: at for queue, at in chosen.items() if at is not None}

    async def _commit_quietly(self, *, processed_only: bool) -> None:
        self._next_commit = self.instance.clock.monotonic() + self.config.auto_commit_interval_s
        try:
            await self.commit(self._positions(processed_only=processed_only))
        except CometMQError as error:
            log.warning("committing as %s: %s", self.group, error)

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """What brokers are told."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            consume_from_where=self.config.consume_from_where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def running_info(self) -> ConsumerRunningInfo:
        """What administrators are told about it."""
        return running_info(self.instance, self.config, self.heartbeat, self._started_ms)

    async def consume_directly(self, message: MessageExt) -> None:
        """It has no listener."""

    def members_changed(self) -> None:
        """Somebody joined or left the group."""
        if self._membership is not None:
            self._membership.soon()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator has moved the group."""
        for queue, offset in offsets.items():
            if queue in self._assignments:
                self.instance.spawn(self._go_to(queue, offset))

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far this member is in a topic."""
        known = self._positions(processed_only=False)
        return {queue: at for queue, at in known.items() if queue.topic == topic}

    # --- assignments ---

    def _demand_running(self) -> None:
        if not self._running:
            raise ClientStateError("the consumer is not running", next_step="use it inside `async with`")

    def _of(self, queue: MessageQueue) -> Assignment:
        assignment = self._assignments.get(queue)
        if assignment is None:
            raise ClientStateError(f"{queue} is not assigned to this consumer", next_step="see its assignment")
        return assignment

    async def _assigned(self, topic: str, queues: set[MessageQueue], shared: bool) -> None:
        async with self._changing:
            if topic not in self._subscriptions:
                queues = set()
            await self._change({queue for queue in self._assignments if queue.topic == topic}, queues)

    async def _change(self, before: set[MessageQueue], after: set[MessageQueue]) -> None:
        for queue in before - after:
            assignment = self._assignments.pop(queue)
            await assignment.stop()
            if self.config.auto_commit and assignment.processed is not None:
                try:
                    await self.offsets.commit(self.group, queue, assignment.processed)
                except CometMQError as error:
                    log.warning("committing as %s: %s", self.group, error)
        for queue in sorted(after - before):
            self._assignments[queue] = assignment = Assignment(self.config, self._budget, self._arrived)
            self._read(queue, assignment, None)

    def _read(self, queue: MessageQueue, assignment: Assignment, offset: int | None) -> None:
        async def start() -> int:
            if offset is not None:
                return offset
            committed = await self.offsets.committed(self.group, queue)
            first = await starting_point(self.offsets, queue, committed, self.config)
            assignment.position = first
            return first

        wanted = self._subscriptions.get(queue.topic) or self._by_hand
        assert wanted is not None
        clock = self.instance.clock
        reading = read_queue(queue, start, self._puller, wanted, self.config, clock, assignment, lite=True)
        assignment.task = self.instance.spawn(reading)

    async def _go_to(self, queue: MessageQueue, offset: int) -> None:
        assignment = self._of(queue)
        await assignment.stop()
        assignment.position = assignment.processed = offset
        self._read(queue, assignment, offset)
