"""The same clients without ``await``: each call runs on one event loop in a background thread.

Nothing is implemented twice: a method here is the method of the asynchronous class, waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.consumer_config import LitePullConfig, PushConfig
from cometmq.client.errors import ClientStateError, ForkedError
from cometmq.client.hooks import CheckForbiddenHook, ConsumeMessageHook, SendMessageHook
from cometmq.client.listener import Listener
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.producer import REQUEST_TIMEOUT_S, Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.selectors import QueueSelector
from cometmq.client.send_result import SendResult
from cometmq.client.subscription import ALL, TAG
from cometmq.client.trace_context import TraceHeaders, with_trace_context
from cometmq.loop import fastest_loop
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.bodies import MessageQueue

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


class _Background:
    """The event loop that all synchronous clients of a process share, in a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = -1

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; after a fork the child gets one of its own."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = fastest_loop()()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="cometmq-client", daemon=True).start()
                atexit.register(self._stop, self._loop, self._pid)
            return self._loop

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
        if pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)


_BACKGROUND: Final = _Background()


class Face(Generic[A]):
    """A client and the loop that it lives on."""

    _inner: A

    def _bind(self, make: Callable[[], A]) -> None:
        self._loop = _BACKGROUND.loop()
        self._pid = os.getpid()

        async def build() -> A:
            return make()

        self._inner = self._run(build())

    def _demand_other_thread(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                "any server", "this client belongs to the parent process", next_step="make a new client after the fork"
            )
        if threading.current_thread().name == "cometmq-client":
            raise ClientStateError(
                "a synchronous client was used on the client's own event loop, which would wait for itself",
                next_step="use the asynchronous client in async listeners",
            )

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            self._demand_other_thread()
        except (ClientStateError, ForkedError):
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, function: Callable[[], R]) -> R:
        async def run() -> R:
            return function()

        return self._run(run())


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Face[A], P], R]:
    """A method that waits for the asynchronous one."""

    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self._inner, *args, **kwargs))

    call.__name__ = method.__name__
    call.__doc__ = method.__doc__
    return call


class _Answer:
    """One outcome, handed from the loop's thread to the one that waits."""

    __slots__ = ("_arrived", "_outcome")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._outcome: SendResult | BaseException | None = None

    def put(self, outcome: SendResult | BaseException) -> None:
        self._outcome = outcome
        self._arrived.release()

    def wait(self) -> SendResult:
        self._arrived.acquire()
        outcome = self._outcome
        if isinstance(outcome, SendResult):
            return outcome
        assert outcome is not None
        raise outcome


class SyncProducer(Face[Producer]):
    """:class:`~cometmq.client.producer.Producer` for code without an event loop; any thread may send."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        send_hooks: Sequence[SendMessageHook] = (),
        check_forbidden_hooks: Sequence[CheckForbiddenHook] = (),
        trace_context: TraceHeaders | None = None,
    ) -> None:
        self._trace_context = trace_context
        self._bind(
            lambda: Producer(
                group,
                namesrv,
                config=config,
                send_hooks=send_hooks,
                check_forbidden_hooks=check_forbidden_hooks,
            )
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
        """As :meth:`Producer.send <cometmq.client.producer.Producer.send>`, which see.

        Neither a task nor a future is made: the loop's thread sends, and releases a lock on the answer.
        """
        self._demand_other_thread()
        message = self._in_span(message)
        answer = _Answer()
        self._loop.call_soon_threadsafe(
            partial(self._inner.send_then, message, queue, sharding_key, selector, timeout_s, answer.put)
        )
        return answer.wait()

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """As :meth:`Producer.send_oneway <cometmq.client.producer.Producer.send_oneway>`, which see."""
        message = self._in_span(message)
        self._run(self._inner.send_oneway(message, queue=queue, sharding_key=sharding_key, selector=selector))

    def send_many(
        self, messages: Iterable[Message], *, selector: QueueSelector | None = None, max_in_flight: int | None = None
    ) -> list[SendResult]:
        """As :meth:`Producer.send_many <cometmq.client.producer.Producer.send_many>`, which see."""
        todo = self._all_in_span(messages)
        return self._run(self._inner.send_many(todo, selector=selector, max_in_flight=max_in_flight))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> list[SendResult]:
        """As :meth:`Producer.send_batch <cometmq.client.producer.Producer.send_batch>`, which see."""
        return self._run(self._inner.send_batch(self._all_in_span(messages), queue=queue, sharding_key=sharding_key))

    recall = blocking(Producer.recall)

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> MessageExt:
        """As :meth:`Producer.request <cometmq.client.producer.Producer.request>`, which see."""
        asking = self._inner.request(
            self._in_span(message), queue=queue, sharding_key=sharding_key, selector=selector, timeout_s=timeout_s
        )
        return self._run(asking)

    def _in_span(self, message: Message) -> Message:
        """The message with the span of this thread, which the loop's thread knows nothing of."""
        return message if self._trace_context is None else with_trace_context(message, self._trace_context)

    def _all_in_span(self, messages: Iterable[Message]) -> Iterable[Message]:
        return messages if self._trace_context is None else [self._in_span(message) for message in messages]

    reply = blocking(Producer.reply)
    queues = blocking(Producer.queues)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncPullConsumer(Face[PullConsumer]):
    """:class:`~cometmq.client.pull_consumer.PullConsumer` for code without an event loop."""

    def __init__(self, group: str, namesrv: str | None = None) -> None:
        self._bind(lambda: PullConsumer(group, namesrv))

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
    ) -> None:
        self._bind(lambda: LitePullConsumer(group, namesrv, config=config, consume_hooks=consume_hooks))

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
    ) -> None:
        self._bind(lambda: PushConsumer(group, listener, namesrv, config=config, consume_hooks=consume_hooks))

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

    def __init__(self, namesrv: str | None = None) -> None:
        self._bind(lambda: Admin(namesrv))

    cluster_info = blocking(Admin.cluster_info)
    masters = blocking(Admin.masters)
    runtime_info = blocking(Admin.runtime_info)
    open_transactions = blocking(Admin.open_transactions)
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

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._inner.__aexit__())
