"""One message consumed because an administrator says so (``ConsumeMessageService.consumeMessageDirectly``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from cometmq.client.listener import (
    ConsumeResult,
    Listener,
    Rollback,
    Verdict,
    failed_part,
    is_coroutine_listener,
    wrong_return,
)
from cometmq.client.user_code import in_thread, is_end, keep_task
from cometmq.clock import Clock
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import ConsumeMessageDirectlyResult


async def consume_directly(
    listener: Listener, message: MessageExt, clock: Clock, ending: Callable[[], bool], *, orderly: bool
) -> ConsumeMessageDirectlyResult:
    """Call the listener with this message alone; whatever it says, the message's queue is not touched."""
    began = clock.monotonic()
    outcome, remark = "CR_SUCCESS", None
    try:
        if is_coroutine_listener(listener):
            verdict = await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", listener)([message])
        else:
            plain = cast("Callable[[Sequence[MessageExt]], Verdict]", listener)
            verdict = await in_thread(None, plain, [message])
        remark = wrong_return(verdict)
        if remark is not None:
            outcome = "CR_THROW_EXCEPTION"
        elif verdict is ConsumeResult.COMMIT:
            outcome = "CR_COMMIT"
        elif verdict is ConsumeResult.ROLLBACK or isinstance(verdict, Rollback):
            outcome = "CR_ROLLBACK"
        elif failed_part([message], verdict):
            outcome = "CR_LATER"
    except BaseException as error:
        if is_end(error) and ending():
            raise
        keep_task()
        outcome, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    spent_ms = round((clock.monotonic() - began) * 1000)
    return ConsumeMessageDirectlyResult(order=orderly, consume_result=outcome, remark=remark, spent_time_mills=spent_ms)
