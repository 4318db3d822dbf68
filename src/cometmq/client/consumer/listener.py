"""Listeners and their verdicts (``MessageListenerConcurrently``, ``MessageListenerOrderly``).

A listener is application code: it may raise anything, even ``SystemExit`` and ``CancelledError``, and return
anything. If it does not return a :data:`Verdict`, the error is logged and its messages count as failed.
"""

from __future__ import annotations

import inspect
import logging
import math
import reprlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Final, cast

import msgspec

from cometmq.client.errors import DeserializationError
from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType, call_all
from cometmq.client.serialization import DecodedMessage, Deserializer, places_of
from cometmq.client.user_code import in_thread, is_async, is_end, keep_task
from cometmq.clock import Clock
from cometmq.message.message import MessageExt
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult

log = logging.getLogger(__name__)

ALLOWED: Final = (
    "None, ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER, Retry(first, delay_level), Suspend(first, seconds)"
)
"""The verdicts that all listeners can return, for error messages."""


class ConsumeResult(Enum):
    """The result for all messages of a listener call."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    COMMIT = "COMMIT"
    """For an orderly listener without ``auto_commit``: commit these messages and all earlier ones."""
    ROLLBACK = "ROLLBACK"
    """For an orderly listener without ``auto_commit``: like :class:`Rollback` with the configured pause."""


class Retry(msgspec.Struct, frozen=True):
    """A verdict: the messages from position ``first`` on have failed, and earlier messages are consumed.

    ``delay_level`` sets the delay until they are delivered again: 1 to 18 (1 s to 2 h), 0 lets the broker choose by the
    number of failures, and -1 sends them to the dead-letter topic immediately. An orderly consumer instead keeps the
    messages and blocks their queue, at every level except -1.
    """

    first: int = 0
    delay_level: int = 0


class Suspend(msgspec.Struct, frozen=True):
    """A verdict: the messages from position ``first`` on have failed, and the queue pauses before they are retried.

    ``SUSPEND_CURRENT_QUEUE_A_MOMENT``: an orderly consumer pauses the queue for ``seconds``, by default as configured,
    and then consumes the same messages again. For any other consumer this verdict is the same as :class:`Retry`.
    """

    first: int = 0
    seconds: float | None = None


class Rollback(msgspec.Struct, frozen=True):
    """A verdict: consume these and all earlier uncommitted messages again (``ConsumeOrderlyStatus.ROLLBACK``).

    Only for an orderly listener without ``auto_commit``. The queue pauses for ``seconds``, by default as configured,
    and continues after the last commit. A rollback does not count as a failure.
    """

    seconds: float | None = None


Verdict = ConsumeResult | Retry | Suspend | Rollback | None
"""A listener's result: ``None`` means success, and an exception means that all messages have failed.

Without ``auto_commit`` the messages of an orderly listener are consumed only after it returns COMMIT.
"""

Listener = Callable[[Sequence[MessageExt]], Verdict] | Callable[[Sequence[MessageExt]], Awaitable[Verdict]]
"""A plain function, which runs in a thread and may block, or an ``async def`` that must not block the event loop."""


def failed_messages(messages: Sequence[MessageExt], verdict: Verdict) -> Sequence[MessageExt]:
    """Return the messages that have failed."""
    if verdict is None or verdict is ConsumeResult.SUCCESS or verdict is ConsumeResult.COMMIT:
        return ()
    if isinstance(verdict, Retry | Suspend) and verdict_problem(verdict) is None:
        return messages[verdict.first :]
    return messages


def verdict_problem(returned: object, *, manual_commit: bool = True) -> str | None:
    """Return the reason why a returned value is not a valid verdict, or ``None`` if it is.

    :param manual_commit: the listener commits and rolls back itself.
    """
    right = returned is None
    if isinstance(returned, Retry):
        right = _is_integer(returned.first, 0) and _is_integer(returned.delay_level, -1)
    elif isinstance(returned, Suspend):
        right = _is_integer(returned.first, 0) and _is_pause(returned.seconds)
    elif isinstance(returned, Rollback):
        right = manual_commit and _is_pause(returned.seconds)
    elif isinstance(returned, ConsumeResult):
        right = manual_commit or returned not in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)
    if right:
        return None
    text = f"the listener returned {reprlib.repr(returned)}, which is not a valid verdict; use one of {ALLOWED}"
    if isinstance(returned, ConsumeResult | Rollback):
        text += ", and only for PushConfig(orderly=True, auto_commit=False)"
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        text += ": nothing awaits it, so write the listener as `async def`"
    return text


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _is_pause(seconds: object) -> bool:
    if seconds is None:
        return True
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf


def checked_verdict(messages: Sequence[MessageExt], returned: Verdict, *, manual_commit: bool = False) -> Verdict:
    """Return a valid verdict unchanged; log any other value and return a failure."""
    if returned is ConsumeResult.SUCCESS:
        return returned
    wrong = verdict_problem(returned, manual_commit=manual_commit)
    if wrong is None:
        return returned
    log.error("%s: %s failed", wrong, places_of(messages))
    return ConsumeResult.RECONSUME_LATER


def raised(messages: Sequence[MessageExt], error: BaseException) -> ConsumeResult:
    """Log a listener's exception and return a failure."""
    if isinstance(error, DeserializationError):  # this error names the message, and its traceback shows nothing more
        log.error("the listener failed on %s: %s", places_of(messages), error)
    else:
        log.error("the listener failed on %s", places_of(messages), exc_info=error)
    keep_task()
    return ConsumeResult.RECONSUME_LATER


class ConsumeObservation:
    """The hooks of a consumer."""

    def __init__(self, group: str, hooks: Sequence[ConsumeMessageHook], clock: Clock) -> None:
        self._group = group
        self._hooks = hooks
        self._clock = clock

    def begin(self, messages: Sequence[MessageExt]) -> ConsumeMessageContext:
        """Call the hooks before the application receives messages; return the context for :meth:`end`."""
        context = ConsumeMessageContext(
            consumer_group=self._group, messages=tuple(messages), begun_at_ms=self._clock.now_ms(), props={}
        )
        call_all((hook.before for hook in self._hooks), context)
        return context

    def end(self, context: ConsumeMessageContext, return_type: ConsumeReturnType) -> None:
        """Call the hooks after the application has consumed the messages."""
        success = return_type is ConsumeReturnType.SUCCESS
        done = msgspec.structs.replace(
            context,
            success=success,
            status=(ConsumeResult.SUCCESS if success else ConsumeResult.RECONSUME_LATER).value,
            return_type=return_type,
            ended_at_ms=self._clock.now_ms(),
        )
        call_all((hook.after for hook in self._hooks), done)


def observed(listener: Listener, observation: ConsumeObservation) -> Listener:
    """Wrap a listener so that the hooks are called around each call."""

    def end(context: ConsumeMessageContext, verdict: Verdict) -> None:
        failed = failed_messages(context.messages, verdict)
        observation.end(context, ConsumeReturnType.FAILED if failed else ConsumeReturnType.SUCCESS)

    async def listen_async(messages: Sequence[MessageExt]) -> Verdict:
        context = observation.begin(messages)
        try:
            verdict = await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", listener)(messages)
        except BaseException:
            observation.end(context, ConsumeReturnType.EXCEPTION)
            raise
        end(context, verdict)
        return verdict

    def listen(messages: Sequence[MessageExt]) -> Verdict:
        context = observation.begin(messages)
        try:
            verdict = cast("Callable[[Sequence[MessageExt]], Verdict]", listener)(messages)
        except BaseException:
            observation.end(context, ConsumeReturnType.EXCEPTION)
            raise
        end(context, verdict)
        return verdict

    return listen_async if is_async(listener) else listen


def decoding(listener: Listener, deserializer: Deserializer) -> Listener:
    """Wrap a listener so that it receives messages with a ``value``."""

    def decoded(messages: Sequence[MessageExt]) -> list[MessageExt]:
        return [DecodedMessage(*one.place, one.broker_name, deserializer=deserializer) for one in messages]

    async def listen_async(messages: Sequence[MessageExt]) -> Verdict:
        return await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", listener)(decoded(messages))

    def listen(messages: Sequence[MessageExt]) -> Verdict:
        return cast("Callable[[Sequence[MessageExt]], Verdict]", listener)(decoded(messages))

    return listen_async if is_async(listener) else listen


async def _call_in_new_thread(listener: Callable[[Sequence[MessageExt]], Verdict], message: MessageExt) -> Verdict:
    """Call a plain listener in a new thread, because all of the consumer's threads may be busy."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="cometmq-consume-directly")
    try:
        return await in_thread(thread, listener, [message])
    finally:
        thread.shutdown(wait=False)


async def consume_directly(
    listener: Listener, message: MessageExt, clock: Clock, ending: Callable[[], bool], *, orderly: bool
) -> ConsumeMessageDirectlyResult:
    """Call the listener with one message. The verdict does not affect the message's queue."""
    began = clock.monotonic()
    outcome, remark = "CR_SUCCESS", None
    try:
        if is_async(listener):
            verdict = await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", listener)([message])
        else:
            plain = cast("Callable[[Sequence[MessageExt]], Verdict]", listener)
            verdict = await _call_in_new_thread(plain, message)
        remark = verdict_problem(verdict)
        if remark is not None:
            outcome = "CR_THROW_EXCEPTION"
        elif verdict is ConsumeResult.COMMIT:
            outcome = "CR_COMMIT"
        elif verdict is ConsumeResult.ROLLBACK or isinstance(verdict, Rollback):
            outcome = "CR_ROLLBACK"
        elif failed_messages([message], verdict):
            outcome = "CR_LATER"
    except BaseException as error:
        if is_end(error) and ending():
            raise
        keep_task()
        outcome, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    spent_ms = round((clock.monotonic() - began) * 1000)
    return ConsumeMessageDirectlyResult(order=orderly, consume_result=outcome, remark=remark, spent_time_mills=spent_ms)
