"""Lets hooks see the calls of a listener, by a listener around it; made only where there are hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType, call_all
from cometmq.client.listener import ConsumeResult, Listener, Verdict, failed_part, is_coroutine_listener
from cometmq.clock import Clock
from cometmq.message.message import MessageExt


def observed(listener: Listener, group: str, hooks: Sequence[ConsumeMessageHook], clock: Clock) -> Listener:
    """The listener with the hooks around each of its calls."""

    def begin(messages: Sequence[MessageExt]) -> ConsumeMessageContext:
        context = ConsumeMessageContext(
            consumer_group=group, messages=tuple(messages), begun_at_ms=clock.now_ms(), props={}
        )
        call_all((hook.before for hook in hooks), context)
        return context

    def end(context: ConsumeMessageContext, verdict: Verdict, raised: bool) -> None:
        success = not raised and not failed_part(context.messages, verdict)
        if raised:
            return_type = ConsumeReturnType.EXCEPTION
        else:
            return_type = ConsumeReturnType.SUCCESS if success else ConsumeReturnType.FAILED
        done = msgspec.structs.replace(
            context,
            success=success,
            status=(ConsumeResult.SUCCESS if success else ConsumeResult.RECONSUME_LATER).value,
            return_type=return_type,
            ended_at_ms=clock.now_ms(),
        )
        call_all((hook.after for hook in hooks), done)

    async def listen_async(messages: Sequence[MessageExt]) -> Verdict:
        context = begin(messages)
        try:
            verdict = await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", listener)(messages)
        except Exception:
            end(context, None, raised=True)
            raise
        end(context, verdict, raised=False)
        return verdict

    def listen(messages: Sequence[MessageExt]) -> Verdict:
        context = begin(messages)
        try:
            verdict = cast("Callable[[Sequence[MessageExt]], Verdict]", listener)(messages)
        except Exception:
            end(context, None, raised=True)
            raise
        end(context, verdict, raised=False)
        return verdict

    return listen_async if is_coroutine_listener(listener) else listen
