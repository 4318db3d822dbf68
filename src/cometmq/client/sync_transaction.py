"""The transaction producer without ``await``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cometmq.client.hooks import CheckForbiddenHook, EndTransactionHook, SendMessageHook
from cometmq.client.selectors import QueueSelector
from cometmq.client.sync_producer import SyncProducer
from cometmq.client.trace_context import TraceHeaders
from cometmq.client.transaction import Checker, LocalTransaction, TransactionSendResult
from cometmq.client.transaction_config import TransactionConfig
from cometmq.client.transaction_producer import TransactionProducer
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.security import Security


class SyncTransactionProducer(SyncProducer):
    """:class:`~cometmq.client.transaction_producer.TransactionProducer` for code without an event loop.

    The local work and the checker are plain functions and run in threads of the producer.
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
    ) -> None:
        self._trace_context = trace_context
        self._bind(
            lambda: TransactionProducer(
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
            )
        )

    def start(self) -> None:
        """As :meth:`TransactionProducer.start`, which see."""
        self._run(self._inner.start())

    def close(self) -> None:
        """As :meth:`TransactionProducer.close`, which see."""
        self._run(self._inner.close())

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        check_immunity_s: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionSendResult:
        """As :meth:`TransactionProducer.send_in_transaction`, which see."""
        return self._run(
            self._inner.send_in_transaction(
                self._in_span(message),
                arg,
                queue=queue,
                sharding_key=sharding_key,
                selector=selector,
                check_immunity_s=check_immunity_s,
                timeout_s=timeout_s,
            )
        )
