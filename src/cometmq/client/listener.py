"""What a listener is, and what it may answer (``MessageListenerConcurrently``, ``MessageListenerOrderly``)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import msgspec

from cometmq.message.message import MessageExt


class ConsumeResult(Enum):
    """How consumption went, for all messages of the call."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class Retry(msgspec.Struct, frozen=True):
    """The messages from position ``first`` on failed; those before are done.

    ``delay_level`` says when they come back: 1 to 18 (1 s to 2 h), 0 lets the broker choose by how
    often they failed, -1 sends them to the dead-letter topic at once. An orderly consumer keeps them
    and their queue waiting instead, whatever the level, except for -1.
    """

    first: int = 0
    delay_level: int = 0


class Suspend(msgspec.Struct, frozen=True):
    """The messages from position ``first`` on failed; those before are done (``SUSPEND_CURRENT_QUEUE_A_MOMENT``).

    An orderly consumer lets the queue rest for ``seconds``, by default as configured, and then gives the
    same messages again. For any other consumer it is the same as :class:`Retry`.
    """

    first: int = 0
    seconds: float | None = None


Verdict = ConsumeResult | Retry | Suspend | None
"""``None`` means success; raising means that all messages of the call failed."""

Listener = Callable[[Sequence[MessageExt]], Verdict] | Callable[[Sequence[MessageExt]], Awaitable[Verdict]]
"""A plain function (runs in a thread, may block) or an ``async def`` (runs on the event loop, must not)."""


def is_coroutine_listener(listener: Listener) -> bool:
    """Whether it is an ``async def``, or an object whose call is."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - the method of a callable object, not whether there is one
    )


def failed_part(messages: Sequence[MessageExt], verdict: Verdict) -> Sequence[MessageExt]:
    """The messages that are to come again."""
    if verdict is None or verdict is ConsumeResult.SUCCESS:
        return ()
    return messages[verdict.first :] if isinstance(verdict, Retry | Suspend) else messages
