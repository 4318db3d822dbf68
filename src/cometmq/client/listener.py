"""What a listener is, and what it may answer (``MessageListenerConcurrently``, ``MessageListenerOrderly``).

A listener is code of somebody else: it may raise anything, ``SystemExit`` and ``CancelledError`` included, and
return anything. Whatever it does but answer by a :data:`Verdict` is an error in the log, and its messages failed.
"""

from __future__ import annotations

import inspect
import logging
import math
import reprlib
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from cometmq.client.user_code import keep_task
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)

ALLOWED: Final = (
    "None, ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER, Retry(first, delay_level), Suspend(first, seconds)"
)
"""What every listener may return, in the words of an error."""


class ConsumeResult(Enum):
    """How consumption went, for all messages of the call."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    COMMIT = "COMMIT"
    """Of an orderly listener without ``auto_commit``: these messages and all before them are done."""
    ROLLBACK = "ROLLBACK"
    """Of an orderly listener without ``auto_commit``: as :class:`Rollback` with the configured rest."""


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


class Rollback(msgspec.Struct, frozen=True):
    """These messages and all before them that are not committed come again (``ConsumeOrderlyStatus.ROLLBACK``).

    Only of an orderly listener without ``auto_commit``. The queue rests for ``seconds``, by default as configured,
    and goes on behind the last commit. It does not count as a failure.
    """

    seconds: float | None = None


Verdict = ConsumeResult | Retry | Suspend | Rollback | None
"""``None`` means success, raising that all messages of the call failed.

Without ``auto_commit`` what an orderly listener succeeded on is not done before it returns COMMIT.
"""

Listener = Callable[[Sequence[MessageExt]], Verdict] | Callable[[Sequence[MessageExt]], Awaitable[Verdict]]
"""A plain function (runs in a thread, may block) or an ``async def`` (runs on the event loop, must not)."""


def is_coroutine_listener(listener: Listener) -> bool:
    """Whether it is an ``async def``, or an object whose call is."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - the method of a callable object, not whether there is one
    )


def failed_part(messages: Sequence[MessageExt], verdict: Verdict) -> Sequence[MessageExt]:
    """The messages that are to come again."""
    if verdict is None or verdict is ConsumeResult.SUCCESS or verdict is ConsumeResult.COMMIT:
        return ()
    if isinstance(verdict, Retry | Suspend) and wrong_return(verdict) is None:
        return messages[verdict.first :]
    return messages


def wrong_return(returned: object, *, manual_commit: bool = True) -> str | None:
    """Say why something that a listener returned is no verdict; ``None`` when it is one.

    :param manual_commit: whether the listener commits and rolls back itself.
    """
    right = returned is None
    if isinstance(returned, Retry):
        right = _is_integer(returned.first, 0) and _is_integer(returned.delay_level, -1)
    elif isinstance(returned, Suspend):
        right = _is_integer(returned.first, 0) and _is_rest(returned.seconds)
    elif isinstance(returned, Rollback):
        right = manual_commit and _is_rest(returned.seconds)
    elif isinstance(returned, ConsumeResult):
        right = manual_commit or returned not in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)
    if right:
        return None
    text = f"the listener returned {reprlib.repr(returned)}, which is none of {ALLOWED}"
    if isinstance(returned, ConsumeResult | Rollback):
        text += ", and for PushConfig(orderly=True, auto_commit=False) alone"
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        text += ": nobody waits for it, write the listener as `async def`"
    return text


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _is_rest(seconds: object) -> bool:
    if seconds is None:
        return True
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf


def judged(messages: Sequence[MessageExt], returned: Verdict, *, manual_commit: bool = False) -> Verdict:
    """What a listener returned; anything that is no verdict is logged, and means that the messages failed."""
    if returned is ConsumeResult.SUCCESS:
        return returned
    wrong = wrong_return(returned, manual_commit=manual_commit)
    if wrong is None:
        return returned
    log.error("%s: %d messages from %s on count as failed", wrong, len(messages), messages[0].msg_id)
    return ConsumeResult.RECONSUME_LATER


def raised(messages: Sequence[MessageExt], error: BaseException) -> ConsumeResult:
    """What it means that a listener raised, be it ``SystemExit``: the messages failed."""
    log.error("the listener failed on %d messages from %s on", len(messages), messages[0].msg_id, exc_info=error)
    keep_task()
    return ConsumeResult.RECONSUME_LATER
