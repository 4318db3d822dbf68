"""The same clients without ``await``: each call runs on one event loop in a background thread.

Nothing is implemented twice: a method here is the method of the asynchronous class, waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.consumer_config import LitePullConfig, PushConfig
from cometmq.client.hooks import ConsumeMessageHook
from cometmq.client.listener import Listener
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.subscription import ALL, TAG
from cometmq.client.sync_face import Face, blocking
from cometmq.client.sync_producer import SyncProducer
from cometmq.client.sync_transaction import SyncTransactionProducer
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.security import Security

__all__ = [
    "SyncAdmin",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncTransactionProducer",
]

R = TypeVar("R")


class SyncPullConsumer(Face[PullConsumer]):
    """:class:`~cometmq.client.pull_consumer.PullConsumer` for code without an event loop."""

    def __init__(self, group: str, namesrv: str | None = None, *, security: Security | None = None) -> None:
        self._bind(lambda: PullConsumer(group, namesrv, security=security))

    start = blocking(PullConsumer.start)
    close = blocking(PullConsumer.close)
    queues = blocking(PullConsumer.queues)
    pull = blocking(PullConsumer.pull)
    pull_raw = blocking(PullConsumer.pull_raw)
    committed = blocking(PullConsumer.committed)
    commit = blocking(PullConsumer.commit)

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that is still there."""
        return self._run(self._inner.offsets.min(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._run(self._inner.offsets.max(queue))

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to a time, in ms."""
        return self._run(self._inner.offsets.at_time(queue, timestamp_ms))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncLitePullConsumer(Face[LitePullConsumer]):
    """:class:`~cometmq.client.lite_pull_consumer.LitePullConsumer` for code without an event loop."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
    ) -> None:
        self._bind(
            lambda: LitePullConsumer(group, namesrv, config=config, consume_hooks=consume_hooks, security=security)
        )

    start = blocking(LitePullConsumer.start)
    close = blocking(LitePullConsumer.close)
    subscribe = blocking(LitePullConsumer.subscribe)
    unsubscribe = blocking(LitePullConsumer.unsubscribe)
    assign = blocking(LitePullConsumer.assign)
    queues = blocking(LitePullConsumer.queues)
    poll = blocking(LitePullConsumer.poll)
    seek = blocking(LitePullConsumer.seek)
    seek_to_begin = blocking(LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(LitePullConsumer.seek_to_end)
    seek_to_time = blocking(LitePullConsumer.seek_to_time)
    committed = blocking(LitePullConsumer.committed)
    commit = blocking(LitePullConsumer.commit)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are read now."""
        return self._call(lambda: self._inner.assignment)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that the next poll goes on at; ``None`` before it is known."""
        return self._call(lambda: self._inner.position(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give no messages of these queues until :meth:`resume`."""
        self._call(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Give messages of these queues again."""
        self._call(lambda: self._inner.resume(queues))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._run(self._inner.__aexit__(kind, *rest))


class SyncPushConsumer(Face[PushConsumer]):
    """:class:`~cometmq.client.push_consumer.PushConsumer` for code without an event loop.

    The listener is a plain function and runs in threads of the consumer.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        namesrv: str | None = None,
        *,
        config: PushConfig | None = None,
        consume_hooks: Sequence[ConsumeMessageHook] = (),
        security: Security | None = None,
    ) -> None:
        self._bind(
            lambda: PushConsumer(
                group, listener, namesrv, config=config, consume_hooks=consume_hooks, security=security
            )
        )

    start = blocking(PushConsumer.start)
    close = blocking(PushConsumer.close)

    def subscribe(self, topic: str, expression: str = ALL, *, expression_type: str = TAG) -> None:
        """Consume ``topic``: all of it, tags as ``TagA || TagB``, or by an SQL92 expression on properties."""
        self._call(lambda: self._inner.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``."""
        self._call(lambda: self._inner.unsubscribe(topic))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member reads now."""
        return self._call(lambda: self._inner.assignment)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncAdmin(Face[Admin]):
    """:class:`~cometmq.client.admin.Admin` for code without an event loop."""

    def __init__(self, namesrv: str | None = None, *, security: Security | None = None) -> None:
        self._bind(lambda: Admin(namesrv, security=security))

    cluster_info = blocking(Admin.cluster_info)
    masters = blocking(Admin.masters)
    runtime_info = blocking(Admin.runtime_info)
    ha_status = blocking(Admin.ha_status)
    broker_config = blocking(Admin.broker_config)
    open_transactions = blocking(Admin.open_transactions)
    resume_transaction = blocking(Admin.resume_transaction)
    waiting = blocking(Admin.waiting)
    waiting_messages = blocking(Admin.waiting_messages)
    timer_check_point = blocking(Admin.timer_check_point)
    topics = blocking(Admin.topics)
    create_topic = blocking(Admin.create_topic)
    delete_topic = blocking(Admin.delete_topic)
    topic_route = blocking(Admin.topic_route)
    queues = blocking(Admin.queues)
    topic_configs = blocking(Admin.topic_configs)
    topic_stats = blocking(Admin.topic_stats)
    create_group = blocking(Admin.create_group)
    groups = blocking(Admin.groups)
    delete_group = blocking(Admin.delete_group)
    consumer_ids = blocking(Admin.consumer_ids)
    consumer_connection = blocking(Admin.consumer_connection)
    producer_connection = blocking(Admin.producer_connection)
    groups_of_topic = blocking(Admin.groups_of_topic)
    consume_progress = blocking(Admin.consume_progress)
    reset_offset = blocking(Admin.reset_offset)
    message_by_id = blocking(Admin.message_by_id)
    query_message = blocking(Admin.query_message)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Where a group goes on in a queue; ``None`` when the broker knows nothing of it."""
        return self._run(self._inner.offsets.committed(group, queue))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Let a group go on at these offsets."""
        for queue, offset in offsets.items():
            self._run(self._inner.offsets.commit(group, queue, offset))

    def run(self, work: Callable[[Admin], Coroutine[Any, Any, R]]) -> R:
        """Wait for a coroutine that works with the asynchronous :class:`Admin`.

        For what takes an ``Admin`` as its argument: ``admin.run(lambda asynchronous: way_of(asynchronous, msg_id))``.
        """
        return self._run(work(self._inner))

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._inner.__aexit__())
