"""Lets hooks see consumption: around the calls of a listener, or from one poll to the next; made only where
there are hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType, call_all
from cometmq.client.listener import ConsumeResult, Listener, Verdict, failed_part, is_coroutine_listener
from cometmq.clock import Clock
from cometmq.message.message import MessageExt


class ConsumeObservation:
    """Tells the hooks of one consumer."""

    def __init__(self, group: str, hooks: Sequence[ConsumeMessageHook], clock: Clock) -> None:
        self._group = group
        self._hooks = hooks
        self._clock = clock

    def begin(self, messages: Sequence[MessageExt]) -> ConsumeMessageContext:
        """The application is about to get these messages; what the hooks have seen."""
        context = ConsumeMessageContext(
            consumer_group=self._group, messages=tuple(messages), begun_at_ms=self._clock.now_ms(), props={}
        )
        call_all((hook.before for hook in self._hooks), context)
        return context

    def end(self, context: ConsumeMessageContext, return_type: ConsumeReturnType) -> None:
        """The application has had them."""
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
    """The listener with the hooks around each of its calls."""

    def end(context: ConsumeMessageContext, verdict: Verdict) -> None:
        failed = failed_part(context.messages, verdict)
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

    return listen_async if is_coroutine_listener(listener) else listen
