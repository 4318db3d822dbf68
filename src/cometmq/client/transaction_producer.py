"""Sends messages in transactions (``TransactionMQProducer``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import msgspec

from cometmq.client.any_delay import has_any_delay
from cometmq.client.errors import BrokerError, IllegalMessageError, RemotingError, RouteNotFoundError
from cometmq.client.hooks import CheckForbiddenHook, EndTransactionContext, EndTransactionHook, SendMessageHook
from cometmq.client.instance import ClientInstance
from cometmq.client.outcomes import Single
from cometmq.client.producer import PACK_IN_THREAD_BYTES, Producer
from cometmq.client.selectors import QueueSelector
from cometmq.client.send_result import SendResult, SendStatus
from cometmq.client.trace_context import TraceHeaders
from cometmq.client.transaction import (
    Checker,
    LocalTransaction,
    TransactionSendResult,
    TransactionState,
    is_async,
    outcome_of,
)
from cometmq.client.transaction_checks import TransactionChecks
from cometmq.client.transaction_config import TransactionConfig
from cometmq.client.transaction_ends import HalfMessage, TransactionEnds
from cometmq.client.user_code import is_end
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import Message
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.message.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP, TRAN_MSG
from cometmq.message.sysflag import TRANSACTION_PREPARED
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)

_STATES_IN_TRACES: Final = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}


class TransactionProducer(Producer):
    """A producer whose messages are delivered exactly if local work was done.

    ``send_in_transaction`` stores the message at the broker, invisible; then calls ``execute``, and
    delivers or forgets the message as that says. When nothing is heard of it, brokers ask the producers
    of the group, which answer by ``check``. Ordinary sends work as with :class:`Producer`.

    :param group: the producer group; all its producers must be able to answer for each other.
    :param execute: does the local work.
    :param check: says what became of the local work.
    :param namesrv: as for :class:`Producer`.
    :param config: everything else.
    :param topics: topics of the group, so that their brokers can ask before the first message is sent; those
        of brokers that make topics by themselves are found without.
    """

    config: TransactionConfig

    def __init__(
        self,
        group: str,
        execute: LocalTransaction,
        check: Checker,
        namesrv: str | None = None,
        *,
        config: TransactionConfig | None = None,
        instance: ClientInstance | None = None,
        topics: Sequence[str] = (),
        send_hooks: Sequence[SendMessageHook] = (),
        check_forbidden_hooks: Sequence[CheckForbiddenHook] = (),
        end_transaction_hooks: Sequence[EndTransactionHook] = (),
        trace_context: TraceHeaders | None = None,
        security: Security | None = None,
    ) -> None:
        config = config or TransactionConfig()
        super().__init__(
            group,
            namesrv,
            config=config,
            instance=instance,
            send_hooks=send_hooks,
            check_forbidden_hooks=check_forbidden_hooks,
            trace_context=trace_context,
            security=security,
        )
        if self.trace is not None:
            end_transaction_hooks = (*end_transaction_hooks, self._trace_end)
        self._execute = execute
        self._threads = None if is_async(execute) else ThreadPoolExecutor(config.execute_threads, "cometmq-transaction")
        self._ends = TransactionEnds(self.instance, group, config.send_timeout_s, end_transaction_hooks)
        self._checks = TransactionChecks(
            self.instance, check, self._ends, config.check_concurrency, config.check_request_hold_max
        )
        self._topics = (AUTO_CREATE_TOPIC, *topics)
        self._part = f"{TRAN_MSG}\x01true\x02{PGROUP}\x01{group}\x02"

    async def start(self) -> None:
        """Make ready to send, and tell brokers that this producer can be asked.

        :raises ClientStateError: it was started before, or another producer of the instance answers for the group.
        """
        self.instance.add_checker(self.group, self._checks.ask)
        try:
            await super().start()
        except BaseException:
            self.instance.remove_checker(self.group, self._checks.ask)
            raise
        self.instance.spawn(self._introduce())

    async def close(self) -> None:
        """Answer no more brokers, wait for messages on their way, say goodbye, close."""
        self.instance.remove_checker(self.group, self._checks.ask)
        await self._checks.close()
        await super().close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _trace_end(self, end: EndTransactionContext) -> None:
        assert self.trace is not None
        self.trace.end_transaction(
            end.message,
            msg_id=end.transaction_id,
            broker_address=end.broker_address,
            transaction_id=end.transaction_id,
            state=_STATES_IN_TRACES[end.state],
            from_transaction_check=end.from_transaction_check,
        )

    async def _introduce(self) -> None:
        """Find the brokers and say hello; what fails now is tried again with every heartbeat."""
        for topic in self._topics:
            with suppress(RouteNotFoundError, RemotingError, BrokerError):
                await self.instance.routes.get(topic)
        await self.instance.send_heartbeats()

    async def send_in_transaction(
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
        """Send a message, do the local work, and end the transaction as that says.

        A message whose storing is not sure (a status other than SEND_OK) is rolled back, and the local work
        is not done. If the message cannot be sent, the local work is not done either. It is sent once:
        an attempt that may have been stored is not repeated.

        :param arg: handed to the local work.
        :param check_immunity_s: seconds until the broker first asks; by default its ``transactionTimeOut``.
        :param timeout_s: seconds for sending the message.
        :raises IllegalMessageError: no broker would take it; nothing was sent.
        :raises RouteNotFoundError: no broker has the topic, nor would make it.
        :raises BrokerError: the broker refused it.
        :raises RemotingError: it may be stored; the broker asks what became of it.
        """
        self._demand_running()
        sent = await self._send_half(message, queue, sharding_key, selector, check_immunity_s, timeout_s)
        error: BaseException | None = None
        if sent.status is not SendStatus.SEND_OK:
            state = TransactionState.ROLLBACK
        else:
            try:
                state = await outcome_of(self._execute, self._threads, message, arg, sent.msg_id)
            except BaseException as failed:
                task = asyncio.current_task()
                if is_end(failed) and task is not None and task.cancelling():
                    raise
                log.exception("the local work of transaction %s failed", sent.msg_id)
                state, error = TransactionState.UNKNOWN, failed
        _, _, commit_log_offset = decode_offset_msg_id(sent.offset_msg_id)
        address = await self.instance.master_of(sent.queue)
        self.instance.say_hello(address)
        half = HalfMessage(message, sent.msg_id, address, sent.queue_offset, commit_log_offset)
        confirmed = await self._ends.end(half, state, from_check=False)
        return TransactionSendResult(
            sent.status,
            sent.msg_id,
            sent.offset_msg_id,
            sent.queue,
            sent.queue_offset,
            state=state,
            confirmed=confirmed,
            error=error,
        )

    async def _send_half(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        check_immunity_s: int | None,
        timeout_s: float | None,
    ) -> SendResult:
        if message.topic.startswith(RETRY_PREFIX):
            raise IllegalMessageError("a message to a retry topic has no transaction", "send it to the topic itself")
        if has_any_delay(message):
            raise IllegalMessageError(
                "a message of a transaction has no delay", "leave out delay and deliver_at, or send it on its own"
            )
        half = msgspec.structs.replace(message, delay_level=0)
        large = len(half.body) >= PACK_IN_THREAD_BYTES
        delivery = await self._prepare_large(half) if large else self._prepare(half)
        delivery.properties_text += self._part
        if check_immunity_s is not None:
            delivery.properties_text += f"{CHECK_IMMUNITY_TIME_IN_SECONDS}\x01{int(check_immunity_s)}\x02"
        delivery.sys_flag |= TRANSACTION_PREPARED
        delivery.retries = 0
        waiting = Single()
        self._start_one(delivery, queue, sharding_key, selector, timeout_s, waiting.done)
        return (await waiting.future)[0]
