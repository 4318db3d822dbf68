"""Consumes in the background and calls a listener (``DefaultMQPushConsumer``)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Self

from cometmq.client.activity import Activity
from cometmq.client.consume_observation import ConsumeObservation, observed
from cometmq.client.consume_service import ConsumeService
from cometmq.client.consumer_config import MessageModel, PushConfig
from cometmq.client.direct_consumption import consume_directly
from cometmq.client.errors import BrokerError, ClientStateError
from cometmq.client.expression_check import check_expressions
from cometmq.client.failures import Failures
from cometmq.client.hooks import ConsumeMessageHook
from cometmq.client.identity import new_client_id
from cometmq.client.instance import ClientInstance
from cometmq.client.listener import Listener, Retry, Verdict, failed_part
from cometmq.client.local_offsets import LocalOffsets
from cometmq.client.membership import Membership
from cometmq.client.offsets import Offsets
from cometmq.client.ordered_failures import OrderedFailures
from cometmq.client.ordered_service import OrderedConsumeService
from cometmq.client.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.pulling import Puller
from cometmq.client.queue_locks import QueueLocks
from cometmq.client.reader import Budget, read_queue
from cometmq.client.running_info import process_queue_info, running_info
from cometmq.client.starting_point import starting_point
from cometmq.client.subscription import ALL, TAG, subscription
from cometmq.client.trace import MessageTrace
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.names import check_group, retry_topic
from cometmq.remoting.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    MessageQueue,
    SubscriptionData,
)
from cometmq.remoting.deadline import within
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)


class PushConsumer:
    """A member of a consumer group: messages of its queues go to ``listener``.

    ``subscribe`` first, then ``async with`` (or ``start``). A message is done when the listener returns;
    it comes again when the listener raises or says so (see :mod:`cometmq.client.listener`), with the
    broker's delays, and goes to the dead-letter topic after ``max_reconsume_times``. With ``orderly`` in
    its configuration it comes again here, and the queue waits for it (``docs/ordered.md``).

    :param group: the consumer group; all its members have the same subscriptions and strategy.
    :param listener: a function of a sequence of messages, plain (called in threads) or ``async``.
    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param config: everything else.
    :param instance: connections to share with others; by default it makes its own.
    :param consume_hooks: see every listener call, see :mod:`cometmq.client.hooks`.
    :param security: credentials and TLS of its own instance; default: what the environment says.
    :raises ValueError: the group's name is not allowed, or an address has no port.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        namesrv: str | None = None,
        *,
        config: PushConfig | None = None,
        instance: ClientInstance | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
    ) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise ValueError(wrong)
        self.group = group
        self.config = config or PushConfig()
        self._broadcast = self.config.message_model is MessageModel.BROADCASTING
        # The offsets of a broadcasting consumer are found again by its client id, so that must not change.
        client_id = new_client_id("DEFAULT") if self._broadcast else None
        self.instance = ClientInstance.given_or_new(instance, namesrv, security, client_id=client_id)
        self.offsets = Offsets(self.instance)
        self.trace: MessageTrace | None = None
        """The trace of this consumer, with ``enable_msg_trace``."""
        if self.config.enable_msg_trace:
            self.trace = MessageTrace(self.instance, group, "CONSUME", self.config.customized_trace_topic)
            consume_hooks = (*consume_hooks, self.trace.consume_hook)
        self._listener = listener
        if consume_hooks:
            observation = ConsumeObservation(group, consume_hooks, self.instance.clock)
            self._listener = observed(listener, observation)
        self._puller = Puller(self.instance, group, stream=False)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._local = LocalOffsets(self.config.offset_store_dir, self.instance.client_id, group)
        self._local_table: dict[MessageQueue, int] = {}
        self._saving = asyncio.Lock()
        self._reporting: dict[MessageQueue, asyncio.Lock] = {}
        self._locks: QueueLocks | None = None
        self._held_on: list[ProcessQueue] = []
        """Orderly: queues left by the close although a call runs."""
        self._state = "not started"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- life ---

    async def start(self) -> None:
        """Join the group and begin to consume.

        :raises ClientStateError: nothing was subscribed, or it was started before.
        :raises RouteNotFoundError: none of the topics exists.
        :raises BrokerError: a broker cannot filter by one of the expressions (see :meth:`subscribe`).
        """
        if self._state != "not started":
            raise ClientStateError(f"the consumer of group {self.group} is {self._state}", next_step="make a new one")
        if not self._subscriptions:
            raise ClientStateError("the consumer has no subscription", next_step="call subscribe before start")
        config = self.config
        clock = self.instance.clock
        if self._broadcast:
            self._local_table = await asyncio.to_thread(self._local.load)
        else:
            retries = retry_topic(self.group)
            self._subscriptions[retries] = subscription(retries, ALL, TAG, clock.now_ms())
        self.instance.add_consumer(self.group, self)
        self.instance.acquire()
        self._state = "running"
        self._budget = Budget(config.pull_threshold_bytes)
        self._started_ms = clock.now_ms()
        self._activity = Activity(clock)
        self._service = self._new_service()
        self._failures = Failures(self.instance, self.group, config, self._service.submit)
        self._membership = Membership(
            self.instance,
            self.group,
            config.allocate_strategy,
            config.rebalance_interval_s,
            self._assigned,
            broadcast=self._broadcast,
        )
        self.instance.spawn(self._persist_now_and_then())
        if not (self._broadcast or config.orderly) and math.isfinite(config.consume_timeout_s):
            self.instance.spawn(self._failures.watch(self._queues.values))
        try:
            await check_expressions(self.instance, self.group, self._subscriptions.values())
            await self._membership.start(self._subscriptions)
        except BaseException:
            await self.close()
            raise

    def _new_service(self) -> ConsumeService | OrderedConsumeService:
        config, clock = self.config, self.instance.clock
        if not config.orderly:
            ending = self.instance.is_ending
            return ConsumeService(self._listener, config.consume_concurrency, clock, self._settled, ending)
        if not self._broadcast:
            self._locks = QueueLocks(self.instance, self.group, self._lock_lost)
        return OrderedConsumeService(
            self._listener,
            config.consume_concurrency,
            config.suspend_current_queue_s,
            clock,
            lambda process_queue: self._is_ours(process_queue.queue),
            lambda process_queue: self._lock_lost(process_queue.queue),
            OrderedFailures(self.instance, self.group, config, self._activity).judge,
            self.instance.is_ending,
            auto_commit=config.auto_commit,
        )

    async def close(self) -> None:
        """Finish what is in consumption, report offsets, leave the group."""
        if self._state != "running":
            return
        self._state = "closed"
        await self._membership.stop()
        for queue in list(self._queues):
            self._leave(queue)
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        if self._locks is not None:
            await self._locks.stop()
        self._service.close()
        if self.trace is not None:
            await self.trace.close()
        if self._held_on:
            self.instance.drop_consumer(self.group)
            self.instance.spawn(self._say_goodbye_later())
        else:
            await self.instance.remove(consumer_group=self.group)
        await self.instance.release()

    async def _say_goodbye_later(self) -> None:
        """Leave the group when the last calls have ended, since a member that leaves has no locks any more.

        An instance that nobody else uses is closed by then; its locks end with their time.
        """
        for process_queue in self._held_on:
            await process_queue.idle()
            if self._locks is not None and not self.instance.has_consumer(self.group):
                await self._locks.release(process_queue.queue)
        if not self.instance.has_consumer(self.group):
            await self.instance.remove(consumer_group=self.group)

    # --- subscriptions ---

    def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Consume ``topic``: all of it, tags as ``TagA || TagB``, or by an SQL92 expression on properties.

        SQL92 needs brokers with ``enablePropertyFilter``. They are asked when the consumer starts; when it
        runs already, a refusal is logged and the topic is not read.

        :raises ValueError: the expression is empty or of an unknown type.
        """
        wanted = subscription(topic, expression, expression_type, self.instance.clock.now_ms())
        self._subscriptions[topic] = wanted
        if self._state == "running":
            self.instance.spawn(self._add(wanted))

    async def _add(self, wanted: SubscriptionData) -> None:
        topic = wanted.topic
        try:
            await check_expressions(self.instance, self.group, [wanted])
        except BrokerError:
            if self._subscriptions.get(topic) is wanted:
                del self._subscriptions[topic]
            raise
        if self._subscriptions.get(topic) is not wanted:
            return  # unsubscribed meanwhile, or subscribed by another expression
        for queue in [queue for queue in self._queues if queue.topic == topic]:
            self._leave(queue)  # and read anew by the expression of now
        await self._membership.add(topic)

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``."""
        if self._subscriptions.pop(topic, None) is not None and self._state == "running":
            self.instance.spawn(self._membership.remove(topic))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member reads now, without those of its retry topic."""
        retries = retry_topic(self.group)
        return frozenset(queue for queue in self._queues if queue.topic != retries)

    @property
    def cached_count(self) -> int:
        """Messages read and not done."""
        return sum(process_queue.cached_count for process_queue in self._queues.values())

    # --- a member of the group, see GroupMember ---

    @property
    def heartbeat(self) -> ConsumerData:
        """What brokers are told."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.config.message_model.value,
            consume_from_where=self.config.consume_from_where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """Somebody joined or left the group."""
        if self._state == "running":
            self._membership.soon()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator has moved the group."""
        for queue, offset in offsets.items():
            process_queue = self._queues.pop(queue, None)
            if process_queue is not None and self._state == "running":
                process_queue.dropped = True
                self._let_go(queue, self._reset(queue, process_queue, offset, self._leaving.get(queue)))
                self._read(queue, shared=False)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far this member is in a topic."""
        return {queue: at for queue, at in self._done().items() if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        """What administrators are told about it."""
        config = self.config
        threads = config.consume_concurrency
        info = running_info(
            self.instance, config, self.heartbeat, self._started_ms, orderly=config.orderly, threads=threads
        )
        self._activity.sample(self._queues)
        for queue, process_queue in self._queues.items():
            locked_ms = self._started_ms if self._locks is None else self._locks.held_ms(queue)
            info.mq_table[queue] = process_queue_info(process_queue, locked_ms, *self._activity.times(queue))
        info.status_table |= {topic: self._activity.status(topic) for topic in sorted(self._subscriptions)}
        return info

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Consume one message because an administrator says so."""
        instance = self.instance
        return await consume_directly(
            self._listener, message, instance.clock, instance.is_ending, orderly=self.config.orderly
        )

    # --- queues come and go ---

    async def _assigned(self, topic: str, queues: set[MessageQueue], shared: bool) -> None:
        if topic not in self._subscriptions:
            queues = set()
        mine = {queue for queue in self._queues if queue.topic == topic and self._queues[queue].is_read}
        queues_left = {queue for queue in self._queues if queue.topic == topic} - (mine & queues)
        for queue in sorted(queues_left):
            self._leave(queue)
        for queue in sorted(queues - mine):
            self._read(queue, shared=shared)

    def _leave(self, queue: MessageQueue) -> None:
        process_queue = self._queues.pop(queue)
        process_queue.dropped = True
        self._let_go(queue, self._hand_over(queue, process_queue, self._leaving.get(queue)))

    def _let_go(self, queue: MessageQueue, work: Coroutine[Any, Any, None]) -> None:
        """Do what ends with the queue being free to be read again, here or elsewhere."""
        task = self.instance.spawn(work)
        self._leaving[queue] = task
        task.add_done_callback(partial(self._left, queue))

    def _left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    def _is_ours(self, queue: MessageQueue) -> bool:
        """Whether nobody else can be reading the queue, as far as its order depends on it."""
        return self._locks is None or self._locks.holds(queue)

    def _lock_lost(self, queue: MessageQueue) -> None:
        """What was read under the lost lock may be done by somebody else now: begin anew under a new one."""
        if self._state == "running" and queue in self._queues:
            log.warning("%s has lost its lock of %s; it will be locked and read anew", self.group, queue)
            self._leave(queue)
            self._read(queue, shared=False)

    def _read(self, queue: MessageQueue, *, shared: bool) -> None:
        config = self.config
        process_queue = ProcessQueue(queue, config, self._budget, self._service.submit)
        self._queues[queue] = process_queue
        clock = self.instance.clock

        async def start() -> int:
            before = self._leaving.get(queue)
            if before is not None:
                await asyncio.wait([before])
            if self._locks is not None:
                await self._locks.acquire(queue)
            elif shared and config.handover_delay_s:
                await clock.sleep(config.handover_delay_s)
            offset = await starting_point(self.offsets, queue, await self._committed(queue), config)
            process_queue.begin(offset)
            return offset

        wanted = self._subscriptions[queue.topic]
        reading = read_queue(queue, start, self._puller, wanted, config, clock, process_queue)
        process_queue.task = self.instance.spawn(reading)

    async def _committed(self, queue: MessageQueue) -> int | None:
        if self._broadcast:
            return self._local_table.get(queue)
        return await self.offsets.committed(self.group, queue)

    async def _hand_over(
        self, queue: MessageQueue, process_queue: ProcessQueue, before: asyncio.Task[None] | None
    ) -> None:
        """Stop reading, report how far it is, wait for what is in consumption, report again, unlock."""
        if before is not None:
            await asyncio.wait([before])
        await process_queue.stop_reading()
        if process_queue.running:
            await self._report({queue: process_queue.offset})
        drained = await self._drain(queue, process_queue)
        await self._report({queue: process_queue.offset})
        process_queue.release()
        if self._locks is not None and drained:
            await self._locks.release(queue)
        elif self._locks is not None:
            self._held_on.append(process_queue)
        log.info("%s has left %s at offset %s", self.group, queue, process_queue.offset)

    async def _drain(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Wait for the calls that run, for a while, or in an orderly group until they end; whether they have."""
        while process_queue.running:
            try:
                await within(self.instance.clock, self.config.handover_wait_s, process_queue.idle())
            except TimeoutError:
                log.warning("%s is to be left while %d calls run", queue, len(process_queue.running))
                if self._locks is None or self._state != "running":
                    return False
        return True

    async def _reset(
        self, queue: MessageQueue, process_queue: ProcessQueue, offset: int, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await process_queue.stop_reading()
        if self.config.orderly:
            await self._drain(queue, process_queue)
        process_queue.release()
        await self._report({queue: offset})

    # --- what the listener said ---

    def _settled(self, request: ConsumeRequest, verdict: Verdict) -> None:
        if verdict is None:
            request.process_queue.finish(request)
            return
        failed = list(failed_part(request.messages, verdict))
        self._activity.failed(request.process_queue.queue.topic, len(failed))
        if not failed:
            request.process_queue.finish(request)
        elif self._broadcast:
            log.warning("%d messages failed; a broadcasting consumer does not get them again", len(failed))
            request.process_queue.finish(request)
        else:
            level = verdict.delay_level if isinstance(verdict, Retry) else 0
            self.instance.spawn(self._failures.hand_back(request, failed, level))

    # --- offsets ---

    def _done(self) -> dict[MessageQueue, int]:
        return {
            queue: process_queue.offset
            for queue, process_queue in self._queues.items()
            if process_queue.offset is not None
        }

    async def _persist_now_and_then(self) -> None:
        while True:
            await self.instance.clock.sleep(self.config.persist_interval_s)
            self._activity.sample(self._queues)
            try:
                await self._report(self._done())
            except Exception:
                log.exception("offsets of %s are not reported; the next report follows", self.group)

    async def _report(self, offsets: Mapping[MessageQueue, int | None]) -> None:
        """Tell the brokers, or the local file, how far queues are; failures are logged, the next report follows."""
        known = {queue: offset for queue, offset in offsets.items() if offset is not None}
        if self._broadcast:
            self._local_table.update(known)
            if known:
                await self._save()
            return
        ours = {queue: offset for queue, offset in known.items() if self._is_ours(queue)}
        await asyncio.gather(*(self._report_one(queue, offset) for queue, offset in ours.items()))

    async def _report_one(self, queue: MessageQueue, offset: int) -> None:
        # One at a time: a broker with several threads may handle two reports in the wrong order.
        async with self._reporting.setdefault(queue, asyncio.Lock()):
            try:
                await self.offsets.commit(self.group, queue, offset)
            except CometMQError as error:
                log.warning("the offset of %s in %s is not reported: %s", self.group, queue, error)

    async def _save(self) -> None:
        async with self._saving:
            try:
                await asyncio.to_thread(self._local.save, dict(self._local_table))
            except RuntimeError:  # Python exits, and begins no thread any more
                self._local.save(dict(self._local_table))
            except OSError as error:
                log.warning("offsets of %s are not kept: %s", self.group, error)
