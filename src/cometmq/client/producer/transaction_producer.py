"""A producer that sends messages in transactions (``TransactionMQProducer``)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from typing import Any, cast

import msgspec

from cometmq.client.errors import BrokerError, IllegalMessageError, RemotingError, RouteNotFoundError
from cometmq.client.hooks import (
    CheckForbiddenHook,
    EndTransactionContext,
    EndTransactionHook,
    SendMessageHook,
    call_all,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.producer.producer import Producer, is_large
from cometmq.client.send.config import TransactionConfig
from cometmq.client.send.delivery import Delivery
from cometmq.client.send.selection import QueueSelector
from cometmq.client.send.timer_brokers import has_any_delay
from cometmq.client.send_result import SendResult, SendStatus
from cometmq.client.serialization import Serializer, to_json, with_body
from cometmq.client.trace.context import TraceHeaders
from cometmq.client.user_code import in_thread, is_async, is_end, keep_task
from cometmq.loop import TaskSet
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.message.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP, TRAN_MSG, encode_properties
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NOT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)


class TransactionState(IntEnum):
    """The outcomes of local work (``LocalTransactionState``), with the numbers used in END_TRANSACTION."""

    COMMIT = TRANSACTION_COMMIT
    """The local work is done: deliver the message."""
    ROLLBACK = TRANSACTION_ROLLBACK
    """The local work was not done and never will be: drop the message."""
    UNKNOWN = TRANSACTION_NOT
    """The outcome is not known yet: the broker checks later."""


LocalTransaction = (
    Callable[[Message, Any, str], TransactionState | None]
    | Callable[[Message, Any, str], Awaitable[TransactionState | None]]
)
"""A function that does the local work for a message; it also gets the caller's argument and the transaction id.

A plain function runs in a thread and may block; an ``async def`` runs on the event loop. ``None`` and an
exception mean UNKNOWN.
"""

Checker = Callable[[MessageExt], TransactionState | None] | Callable[[MessageExt], Awaitable[TransactionState | None]]
"""A function that returns the outcome of a message's local work; the message's id is the transaction id.

The broker may ask any producer of the group, even a producer that did not send the message. Apart from that, it works
as
:data:`LocalTransaction` does.
"""


class TransactionSendResult(SendResult, frozen=True, kw_only=True, gc=True):
    """The result of a transaction: the position of the half message, and the outcome."""

    state: TransactionState
    confirmed: bool
    """True if the broker has stored the outcome. If not, the broker will check the transaction again."""
    error: BaseException | None = None
    """The error raised by the local work.

    Its frames may refer to this result, so the garbage collector must track the result.
    """


async def outcome_of(function: Callable[..., object], threads: Executor | None, *arguments: object) -> TransactionState:
    """Call ``execute`` or ``check`` of the user, in a thread if ``threads`` is given, and return the state.

    :raises TypeError: the function returns another type.
    """
    if threads is None:
        returned = await cast("Awaitable[object]", function(*arguments))
    else:
        returned = await in_thread(threads, function, *arguments)
    if returned is None:
        return TransactionState.UNKNOWN
    if inspect.iscoroutine(returned):
        returned.close()
    if not isinstance(returned, TransactionState):
        raise TypeError(f"the function must return a TransactionState, not {returned!r}")
    return returned


Pinned = tuple[MessageQueue | None, str | None, QueueSelector | None, float | None]
"""The arguments of :meth:`Delivery.pin`."""


class HalfMessage(msgspec.Struct, frozen=True):
    """A half message's position."""

    message: Message | MessageExt
    transaction_id: str
    address: str
    """The broker's address."""
    queue_offset: int
    commit_log_offset: int


class TransactionEnds:
    """Sends END_TRANSACTION requests for one producer group."""

    def __init__(
        self, instance: ClientInstance, group: str, timeout_s: float, hooks: Sequence[EndTransactionHook]
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout_s = timeout_s
        self._hooks = hooks

    async def end(self, half: HalfMessage, state: TransactionState, *, from_check: bool) -> bool:
        """End a transaction; return whether the broker has confirmed it. Brokers do not confirm UNKNOWN.

        Failures are logged, since the broker checks again.
        """
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=int(state),
            msg_id=half.transaction_id,
            from_transaction_check=from_check,
            transaction_id=half.transaction_id,
        )
        remoting = self._instance.remoting
        confirmed = False
        try:
            if state is TransactionState.UNKNOWN:
                await remoting.invoke_oneway(
                    half.address, RequestCode.END_TRANSACTION, header, timeout_s=self._timeout_s
                )
            else:
                doing = f"ending transaction {half.transaction_id}"
                await self._instance.call(
                    half.address, RequestCode.END_TRANSACTION, header, doing=doing, timeout_s=self._timeout_s
                )
                confirmed = True
        except (RemotingError, BrokerError) as error:
            log.warning("transaction %s remains open until the broker checks it: %s", half.transaction_id, error)
        if self._hooks:
            context = EndTransactionContext(
                producer_group=self._group,
                message=half.message,
                transaction_id=half.transaction_id,
                broker_address=half.address,
                state=state.name,
                from_transaction_check=from_check,
                confirmed=confirmed,
            )
            call_all(self._hooks, context)
        return confirmed


class TransactionChecks:
    """Handles CHECK_TRANSACTION_STATE by calling a checker, with up to ``concurrency`` concurrent calls.

    At most ``most_waiting`` checks are pending; further checks are dropped, and the broker repeats them in its next
    round.
    """

    def __init__(
        self, instance: ClientInstance, checker: Checker, ends: TransactionEnds, concurrency: int, most_waiting: int
    ) -> None:
        self._instance = instance
        self._checker = checker
        self._ends = ends
        self._concurrency = concurrency
        self._line: deque[HalfMessage] = deque()
        self._most_waiting = most_waiting
        self._workers = TaskSet()
        self._threads = None if is_async(checker) else ThreadPoolExecutor(concurrency, "cometmq-check")
        self._is_open = True

    def ask(self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Accept a broker's check, and respond after the checker has returned."""
        if not self._is_open:
            return
        if len(self._line) >= self._most_waiting:
            log.warning("%d transaction checks are already waiting; dropping one from %s", len(self._line), address)
            return
        self._line.append(
            HalfMessage(message, message.msg_id, address, header.tran_state_table_offset, header.commit_log_offset)
        )
        if len(self._workers) < self._concurrency:
            self._workers.hold(self._instance.spawn(self._work()))

    async def close(self) -> None:
        """Stop handling checks, without waiting for running calls of the checker."""
        self._is_open = False
        self._line.clear()
        await self._workers.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _work(self) -> None:
        while self._line:
            half = self._line.popleft()
            try:
                state = await outcome_of(self._checker, self._threads, half.message)
            except BaseException as error:
                if is_end(error) and (not self._is_open or self._instance.is_ending()):
                    raise
                log.exception("the checker failed on transaction %s", half.transaction_id)
                keep_task()
                state = TransactionState.UNKNOWN
            await self._ends.end(half, state, from_check=True)


class TransactionProducer(Producer):
    """A producer whose messages are delivered only if the local work succeeds.

    ``send_in_transaction`` stores the message invisibly on the broker, calls ``execute``, and delivers or drops the
    message according to the result. If the broker receives no result, it asks a producer of the group, which calls
    ``check``.
    Ordinary sends work as with :class:`Producer`.

    :param group: the producer group; each of its producers must be able to answer for the others.
    :param execute: does the local work.
    :param check: returns the result of the local work.
    :param namesrv: the nameservers, as for :class:`Producer`.
    :param config: all other options.
    :param topics: topics of the group, so that their brokers can check before the first message is sent. Brokers that
        create topics automatically need no entry.
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
        serializer: Serializer = to_json,
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
            serializer=serializer,
        )
        if self.trace is not None:
            end_transaction_hooks = (*end_transaction_hooks, self.trace.end_hook)
        self._execute = execute
        self._threads = None if is_async(execute) else ThreadPoolExecutor(config.execute_threads, "cometmq-transaction")
        self._ends = TransactionEnds(self.instance, group, config.send_timeout_s, end_transaction_hooks)
        self._checks = TransactionChecks(
            self.instance, check, self._ends, config.check_concurrency, config.check_request_hold_max
        )
        self._topics = (AUTO_CREATE_TOPIC, *topics)
        self._part = encode_properties({TRAN_MSG: "true", PGROUP: group})

    async def start(self) -> None:
        """Prepare for sending, and register with the brokers for transaction checks.

        :raises ClientStateError: the producer was started before, or another producer of the instance answers for the
            group.
        """
        self.instance.add_checker(self.group, self._checks.ask)
        try:
            await super().start()
        except BaseException:
            self.instance.remove_checker(self.group, self._checks.ask)
            raise
        self.instance.spawn(self._introduce())

    async def _end(self) -> None:
        """Stop handling checks, wait for transactions and messages in flight, unregister, and close the producer."""
        self.instance.remove_checker(self.group, self._checks.ask)
        await self._checks.close()
        await super()._end()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _introduce(self) -> None:
        """Find the brokers of the group's topics and send them heartbeats.

        After a failure, a later heartbeat follows.
        """
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
        """Send a message, do the local work, and end the transaction according to its outcome.

        A message with a status other than SEND_OK is rolled back, and the local work is not done. If the message cannot
        be sent, the local work is not done either. An attempt that may have stored the message is not repeated.

        :param arg: an argument for the local work.
        :param check_immunity_s: seconds until the first check; by default the broker's ``transactionTimeOut``.
        :param timeout_s: seconds for sending the message.
        :raises IllegalMessageError: no broker would accept it; nothing was sent.
        :raises RouteNotFoundError: no broker has the topic, or would create it.
        :raises BrokerError: the broker refused it.
        :raises RemotingError: it may be stored; then the broker checks the transaction.
        """
        self._check_running()
        with self._sender.under_way():
            return await self._transaction(message, arg, (queue, sharding_key, selector, timeout_s), check_immunity_s)

    async def _transaction(
        self, message: Message, arg: Any, pinned: Pinned, check_immunity_s: int | None
    ) -> TransactionSendResult:
        delivery = await self._prepare_half(message, check_immunity_s)
        delivery.pin(*pinned)
        sent = await self._send(delivery)
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
                log.exception("the local work for transaction %s failed", sent.msg_id)
                state, error = TransactionState.UNKNOWN, failed
        _, _, commit_log_offset = decode_offset_msg_id(sent.offset_msg_id)
        address = await self.instance.master_of(sent.queue)
        self.instance.send_first_heartbeat(address)
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

    async def _prepare_half(self, message: Message, check_immunity_s: int | None) -> Delivery:
        if message.topic.startswith(RETRY_PREFIX):
            raise IllegalMessageError(
                "a message to a retry topic cannot be sent in a transaction", "send it to the original topic"
            )
        if has_any_delay(message):
            raise IllegalMessageError(
                "a message in a transaction cannot be delayed",
                "remove delay and deliver_at, or send it without a transaction",
            )
        half = msgspec.structs.replace(with_body(message, self._serializer), delay_level=0)
        delivery = await self._prepare_large(half) if is_large(half) else self._prepare(half)
        delivery.properties_text += self._part
        if check_immunity_s is not None:
            delivery.properties_text += encode_properties({CHECK_IMMUNITY_TIME_IN_SECONDS: str(int(check_immunity_s))})
        delivery.sys_flag |= TRANSACTION_PREPARED
        delivery.retries = 0
        return delivery
