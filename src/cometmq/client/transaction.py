"""What users of transactions write and get: states, the two callables, results (``TransactionListener``)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from enum import IntEnum
from typing import Any, cast

from cometmq.client.send_result import SendResult
from cometmq.client.user_code import in_thread
from cometmq.message.message import Message, MessageExt
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NOT, TRANSACTION_ROLLBACK


class TransactionState(IntEnum):
    """What became of the local work (``LocalTransactionState``), with the numbers of END_TRANSACTION."""

    COMMIT = TRANSACTION_COMMIT
    """It is done: deliver the message."""
    ROLLBACK = TRANSACTION_ROLLBACK
    """It is not done and never will be: forget the message."""
    UNKNOWN = TRANSACTION_NOT
    """Not decided yet: the broker asks later."""


LocalTransaction = (
    Callable[[Message, Any, str], TransactionState | None]
    | Callable[[Message, Any, str], Awaitable[TransactionState | None]]
)
"""Does the local work for a message, given also the caller's argument and the transaction id.

A plain function runs in a thread and may block; an ``async def`` runs on the event loop. ``None`` and an
exception mean UNKNOWN.
"""

Checker = Callable[[MessageExt], TransactionState | None] | Callable[[MessageExt], Awaitable[TransactionState | None]]
"""Says what became of the local work for a message, whose ``msg_id`` is the transaction id.

Any producer of the group may be asked, also one that did not send the message. Otherwise as
:data:`LocalTransaction`.
"""


class TransactionSendResult(SendResult, frozen=True, kw_only=True):
    """Where the half message stands, and how its transaction ended."""

    state: TransactionState
    confirmed: bool
    """Whether the broker has stored the end. If not, it asks a producer of the group."""
    error: BaseException | None = None
    """What the local work raised."""


def is_async(function: Callable[..., object]) -> bool:
    """Whether a callable, also a callable object, is an ``async def``."""
    method = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


async def outcome_of(function: Callable[..., object], threads: Executor | None, *arguments: object) -> TransactionState:
    """Call one of the user's functions, in a thread where there are any, and demand a state of it.

    :raises TypeError: it returns something else.
    """
    if threads is None:
        told = await cast("Awaitable[object]", function(*arguments))
    else:
        told = await in_thread(threads, function, *arguments)
    if told is None:
        return TransactionState.UNKNOWN
    if inspect.iscoroutine(told):
        told.close()
    if not isinstance(told, TransactionState):
        raise TypeError(f"a TransactionState is expected, not {told!r}")
    return told
