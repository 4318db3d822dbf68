"""The producer without ``await``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Self

from cometmq.client.hooks import CheckForbiddenHook, SendMessageHook
from cometmq.client.producer import REQUEST_TIMEOUT_S, Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.selectors import QueueSelector
from cometmq.client.send_result import SendResult
from cometmq.client.sync_face import Face, blocking
from cometmq.client.trace_context import TraceHeaders, with_trace_context
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.security import Security


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
        security: Security | None = None,
    ) -> None:
        self._trace_context = trace_context
        self._bind(
            lambda: Producer(
                group,
                namesrv,
                config=config,
                send_hooks=send_hooks,
                check_forbidden_hooks=check_forbidden_hooks,
                security=security,
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
        if self._is_exiting:
            return self._run(
                self._inner.send(
                    message, queue=queue, sharding_key=sharding_key, selector=selector, timeout_s=timeout_s
                )
            )
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
