"""Synchronous producers, consumers and administration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.consumer.config import LitePullConfig, PushConfig
from cometmq.client.consumer.listener import Listener
from cometmq.client.consumer.lite_pull_consumer import LitePullConsumer
from cometmq.client.consumer.message_stream import Batch, ReceivedMessage
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.hooks import CheckForbiddenHook, ConsumeMessageHook, EndTransactionHook, SendMessageHook
from cometmq.client.producer.producer import Producer
from cometmq.client.producer.transaction_producer import Checker, LocalTransaction, TransactionProducer
from cometmq.client.send.config import ProducerConfig, TransactionConfig
from cometmq.client.send.selection import QueueSelector
from cometmq.client.send_result import SendResult
from cometmq.client.serialization import Serializer, to_json
from cometmq.client.sync.base import Answer, SyncClient, SyncSteps, blocking, taking
from cometmq.client.sync.running import SyncRunning
from cometmq.client.trace.context import TraceHeaders, with_trace_context
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.security import Security

PR = TypeVar("PR", bound=Producer)
R = TypeVar("R")
P = ParamSpec("P")


async def _next(iterator: AsyncIterator[R]) -> R:
    return await anext(iterator)


def spanned(
    method: Callable[Concatenate[PR, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncProducer, P], R]:
    """Return a blocking method that also adds the calling thread's tracing span to the message."""
    waited_for = blocking(method)

    @wraps(method)
    def call(self: SyncProducer, /, *args: Any, **kwargs: Any) -> R:
        message, *rest = args or (kwargs.pop("message"),)
        result: R = waited_for(self, self._in_span(message), *rest, **kwargs)  # type: ignore[arg-type]
        return result

    return call


class SyncProducer(SyncClient[Producer]):
    """A synchronous :class:`~cometmq.client.producer.producer.Producer`; any thread can send messages."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        send_hooks: Sequence[SendMessageHook] = (),
        check_forbidden_hooks: Sequence[CheckForbiddenHook] = (),
        trace_context: TraceHeaders | None = None,
        security: Security | None = None,
        serializer: Serializer = to_json,
    ) -> None:
        self._trace_context = trace_context
        self._bind(
            Producer,
            group,
            namesrv,
            config=config,
            send_hooks=send_hooks,
            check_forbidden_hooks=check_forbidden_hooks,
            security=security,
            serializer=serializer,
        )

    start = blocking(Producer.start)
    close = blocking(Producer.close)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message; see :meth:`Producer.send <cometmq.client.producer.producer.Producer.send>`.

        This needs neither a task nor a future: the loop's thread sends, and releases a lock on the answer.
        """
        self._check_other_thread()
        message = self._in_span(message)
        if self._is_exiting:
            return self._run(
                self._inner.send(
                    message, queue=queue, sharding_key=sharding_key, selector=selector, timeout_s=timeout_s
                )
            )
        answer: Answer[SendResult] = Answer()
        self._loop.call_soon_threadsafe(
            partial(self._inner.send_then, message, queue, sharding_key, selector, timeout_s, answer.put)
        )
        return answer.wait()

    send_oneway = spanned(Producer.send_oneway)
    request = spanned(Producer.request)
    reply = blocking(Producer.reply)
    recall = blocking(Producer.recall)
    queues = blocking(Producer.queues)

    def send_many(
        self, messages: Iterable[Message], *, selector: QueueSelector | None = None, max_in_flight: int | None = None
    ) -> list[SendResult]:
        """Send messages; see :meth:`Producer.send_many <cometmq.client.producer.producer.Producer.send_many>`."""
        todo = self._all_in_span(messages)
        return self._run(self._inner.send_many(todo, selector=selector, max_in_flight=max_in_flight))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> list[SendResult]:
        """Send messages in batches; see :meth:`Producer.send_batch
        <cometmq.client.producer.producer.Producer.send_batch>`.
        """
        return self._run(self._inner.send_batch(self._all_in_span(messages), queue=queue, sharding_key=sharding_key))

    def _in_span(self, message: Message) -> Message:
        """Add the current tracing span of this thread to a message."""
        return message if self._trace_context is None else with_trace_context(message, self._trace_context)

    def _all_in_span(self, messages: Iterable[Message]) -> Iterable[Message]:
        return messages if self._trace_context is None else [self._in_span(message) for message in messages]


class SyncTransactionProducer(SyncProducer):
    """A synchronous :class:`~cometmq.client.producer.transaction_producer.TransactionProducer`.

    The local work and the checker are plain functions that run in threads of the producer.
    """

    _inner: TransactionProducer

    def __init__(
        self,
        group: str,
        execute: LocalTransaction,
        check: Checker,
        namesrv: str | None = None,
        *,
        config: TransactionConfig | None = None,
        topics: Sequence[str] = (),
        send_hooks: Sequence[SendMessageHook] = (),
        check_forbidden_hooks: Sequence[CheckForbiddenHook] = (),
        end_transaction_hooks: Sequence[EndTransactionHook] = (),
        trace_context: TraceHeaders | None = None,
        security: Security | None = None,
        serializer: Serializer = to_json,
    ) -> None:
        self._trace_context = trace_context
        self._bind(
            TransactionProducer,
            group,
            execute,
            check,
            namesrv,
            config=config,
            topics=topics,
            send_hooks=send_hooks,
            check_forbidden_hooks=check_forbidden_hooks,
            end_transaction_hooks=end_transaction_hooks,
            security=security,
            serializer=serializer,
        )

    send_in_transaction = spanned(TransactionProducer.send_in_transaction)


class SyncPullConsumer(SyncClient[PullConsumer]):
    """A synchronous :class:`~cometmq.client.consumer.pull_consumer.PullConsumer`."""

    def __init__(self, group: str, namesrv: str | None = None, *, security: Security | None = None) -> None:
        self._bind(PullConsumer, group, namesrv, security=security)

    start = blocking(PullConsumer.start)
    close = blocking(PullConsumer.close)
    queues = blocking(PullConsumer.queues)
    pull = blocking(PullConsumer.pull)
    pull_raw = blocking(PullConsumer.pull_raw)
    committed = blocking(PullConsumer.committed)
    commit = blocking(PullConsumer.commit)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is still stored."""
        return self._run(self._inner.offsets.min(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return self._run(self._inner.offsets.max(queue))

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (ms), or the queue's end if there is
        none.
        """
        return self._run(self._inner.offsets.at_time(queue, timestamp_ms))


class SyncLitePullConsumer(SyncClient[LitePullConsumer]):
    """A synchronous :class:`~cometmq.client.consumer.lite_pull_consumer.LitePullConsumer`."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self._bind(
            LitePullConsumer,
            group,
            namesrv,
            config=config,
            consume_hooks=consume_hooks,
            security=security,
            deserializer=deserializer,
        )

    start = blocking(LitePullConsumer.start)
    close = blocking(LitePullConsumer.close)
    subscribe = blocking(LitePullConsumer.subscribe)
    unsubscribe = blocking(LitePullConsumer.unsubscribe)
    assign = blocking(LitePullConsumer.assign)
    queues = blocking(LitePullConsumer.queues)
    poll = taking(LitePullConsumer.poll)
    seek = blocking(LitePullConsumer.seek)
    seek_to_begin = blocking(LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(LitePullConsumer.seek_to_end)
    seek_to_time = blocking(LitePullConsumer.seek_to_time)
    committed = blocking(LitePullConsumer.committed)
    commit = blocking(LitePullConsumer.commit)

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over messages until the consumer is closed; each step polls one message."""
        return SyncSteps(partial(self._next, self._inner.batches(1)))

    def _next(self, steps: AsyncIterator[list[MessageExt]]) -> MessageExt:
        return self._next_batch(steps)[0]

    def batches(self, max_messages: int | None = None) -> Iterator[list[MessageExt]]:
        """Iterate over polls; see :meth:`LitePullConsumer.batches <cometmq.client.LitePullConsumer.batches>`."""
        return SyncSteps(partial(self._next_batch, self._inner.batches(max_messages)))

    def _next_batch(self, steps: AsyncIterator[list[MessageExt]]) -> list[MessageExt]:
        try:
            return self._run(_next(steps), self._inner.give_back)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues being read."""
        return self._call(lambda: self._inner.assignment)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset at which the next poll starts, or ``None`` while it is unknown."""
        return self._call(lambda: self._inner.position(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages from these queues until :meth:`resume` is called."""
        self._call(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume returning messages from these queues."""
        self._call(lambda: self._inner.resume(queues))


class SyncPushConsumer(SyncRunning[PushConsumer]):
    """A synchronous :class:`~cometmq.client.consumer.push_consumer.PushConsumer`.

    The listener is a plain function that runs in threads of the consumer. If there is no listener, iterate: ``for
    message in consumer``, and call ``message.ack()``.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        namesrv: str | None = None,
        *,
        config: PushConfig | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self._bind(
            PushConsumer,
            group,
            listener,
            namesrv,
            config=config,
            consume_hooks=consume_hooks,
            security=security,
            deserializer=deserializer,
        )

    start = blocking(PushConsumer.start)
    close = blocking(PushConsumer.close)
    subscribe = blocking(PushConsumer.subscribe)
    unsubscribe = blocking(PushConsumer.unsubscribe)
    receive = taking(PushConsumer.receive)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""
        return SyncSteps(self._next)

    def _next(self) -> ReceivedMessage:
        return self._next_batch(1)[0]

    def batches(self, max_messages: int = 32) -> Iterator[Batch]:
        """Iterate over batches; see :meth:`PushConsumer.batches <cometmq.client.PushConsumer.batches>`."""
        return SyncSteps(partial(self._next_batch, max_messages))

    def _next_batch(self, max_messages: int) -> Batch:
        if batch := self.receive(max_messages):
            return batch
        raise StopIteration

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this member is reading."""
        return self._call(lambda: self._inner.assignment)


class SyncAdmin(SyncClient[Admin]):
    """A synchronous :class:`~cometmq.client.admin.Admin`."""

    def __init__(self, namesrv: str | None = None, *, security: Security | None = None) -> None:
        self._bind(Admin, namesrv, security=security)

    cluster_info = blocking(Admin.cluster_info)
    failover_status = blocking(Admin.failover_status)
    hand_over = blocking(Admin.hand_over)
    force_master = blocking(Admin.force_master)
    masters = blocking(Admin.masters)
    runtime_info = blocking(Admin.runtime_info)
    ha_status = blocking(Admin.ha_status)
    broker_config = blocking(Admin.broker_config)
    update_broker_config = blocking(Admin.update_broker_config)
    namesrv_config = blocking(Admin.namesrv_config)
    update_namesrv_config = blocking(Admin.update_namesrv_config)
    open_transactions = blocking(Admin.open_transactions)
    resume_transaction = blocking(Admin.resume_transaction)
    waiting = blocking(Admin.waiting)
    waiting_messages = blocking(Admin.waiting_messages)
    timer_check_point = blocking(Admin.timer_check_point)
    topics = blocking(Admin.topics)
    create_topic = blocking(Admin.create_topic)
    put_topic = blocking(Admin.put_topic)
    until_routed = blocking(Admin.until_routed)
    delete_topic = blocking(Admin.delete_topic)
    topic_route = blocking(Admin.topic_route)
    topic_routes = blocking(Admin.topic_routes)
    queues = blocking(Admin.queues)
    topic_configs = blocking(Admin.topic_configs)
    topic_types = blocking(Admin.topic_types)
    topic_attributes = blocking(Admin.topic_attributes)
    topic_stats = blocking(Admin.topic_stats)
    topic_stats_of = blocking(Admin.topic_stats_of)
    rate = blocking(Admin.rate)
    wipe_write_perm = blocking(Admin.wipe_write_perm)
    create_group = blocking(Admin.create_group)
    groups = blocking(Admin.groups)
    group_configs = blocking(Admin.group_configs)
    delete_group = blocking(Admin.delete_group)
    consumer_ids = blocking(Admin.consumer_ids)
    create_user = blocking(Admin.create_user)
    update_user = blocking(Admin.update_user)
    delete_user = blocking(Admin.delete_user)
    users = blocking(Admin.users)
    user = blocking(Admin.user)
    put_policies = blocking(Admin.put_policies)
    delete_policies = blocking(Admin.delete_policies)
    policies = blocking(Admin.policies)
    policies_of = blocking(Admin.policies_of)
    put_quota = blocking(Admin.put_quota)
    delete_quota = blocking(Admin.delete_quota)
    quotas = blocking(Admin.quotas)
    plain_accounts = blocking(Admin.plain_accounts)
    consumer_connection = blocking(Admin.consumer_connection)
    consumer_running_info = blocking(Admin.consumer_running_info)
    producer_connection = blocking(Admin.producer_connection)
    producers = blocking(Admin.producers)
    progress_of_all_groups = blocking(Admin.progress_of_all_groups)
    progress_sums = blocking(Admin.progress_sums)
    progress_at = blocking(Admin.progress_at)
    groups_of_topic = blocking(Admin.groups_of_topic)
    consume_progress = blocking(Admin.consume_progress)
    create_lite_topic = blocking(Admin.create_lite_topic)
    create_lite_group = blocking(Admin.create_lite_group)
    lite_parent = blocking(Admin.lite_parent)
    lite_topic = blocking(Admin.lite_topic)
    lite_client = blocking(Admin.lite_client)
    lite_lag = blocking(Admin.lite_lag)
    lite_topics = blocking(Admin.lite_topics)
    lite_page = blocking(Admin.lite_page)
    expire_lite_topics = blocking(Admin.expire_lite_topics)
    reset_offset = blocking(Admin.reset_offset)
    message_by_id = blocking(Admin.message_by_id)
    query_message = blocking(Admin.query_message)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset, or ``None`` if there is none."""
        return self._run(self._inner.offsets.committed(group, queue))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets for a group."""
        for queue, offset in offsets.items():
            self._run(self._inner.offsets.commit(group, queue, offset))

    def run(self, work: Callable[[Admin], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine that needs the asynchronous :class:`Admin`, and wait for it.

        It is meant for functions with an ``Admin`` argument: ``admin.run(lambda asynchronous: way_of(asynchronous,
        msg_id))``.
        """
        return self._run(work(self._inner))
