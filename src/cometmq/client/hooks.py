"""Hooks of producers and consumers: plain functions that see each attempt to send and each listener call.

``SendMessageHook``, ``CheckForbiddenHook`` and ``ConsumeMessageHook`` of RocketMQ. A hook that raises is
logged and passed over; only a check-forbidden hook refuses a message by raising. Without hooks nothing
is made or called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeVar

import msgspec

from cometmq.client.errors import ClientError
from cometmq.client.send_result import SendResult
from cometmq.message.message import Message, MessageExt
from cometmq.message.message_type import MessageType
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode

log = logging.getLogger(__name__)

C = TypeVar("C")


class CommunicationMode(Enum):
    """How a message is sent, in RocketMQ's words."""

    SYNC = "SYNC"
    """``send`` and ``send_batch``."""
    ASYNC = "ASYNC"
    """``send_many``."""
    ONEWAY = "ONEWAY"
    """``send_oneway``."""


class SendMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send a message, or a batch (``SendMessageContext``)."""

    producer_group: str
    messages: tuple[Message, ...]
    """One, or those of a batch; not to be changed, they are encoded already."""
    msg_ids: tuple[str, ...]
    """The unique key of each message."""
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode
    msg_type: MessageType
    body_bytes: int
    """The body as it is sent: packed, or of the whole batch."""
    begun_at_ms: int
    """When the attempt began, ms since 1970."""
    props: dict[str, object]
    """For hooks: what ``before`` puts here ``after`` finds."""
    results: tuple[SendResult, ...] = ()
    """After: where each message is stored; empty after a failure, and of a oneway send."""
    error: BaseException | None = None
    """After: why the attempt failed."""
    ended_at_ms: int = 0
    """After: when the answer came, ms since 1970."""
    region_id: str | None = None
    """After: the broker's region (``MSG_REGION``)."""
    trace_on: bool = True
    """After: whether the broker lets its messages be traced (``TRACE_ON``)."""


class CheckForbiddenContext(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is about to be sent (``CheckForbiddenContext``)."""

    producer_group: str
    messages: tuple[Message, ...]
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode


class ConsumeReturnType(IntEnum):
    """How a listener call ended, with the numbers that traces carry (``ConsumeReturnType``)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class ConsumeMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a listener (``ConsumeMessageContext``)."""

    consumer_group: str
    messages: tuple[MessageExt, ...]
    begun_at_ms: int
    """When the call began, ms since 1970."""
    props: dict[str, object]
    """For hooks: what ``before`` puts here ``after`` finds."""
    success: bool = False
    """After: whether all messages are done."""
    status: str = ""
    """After: ``CONSUME_SUCCESS`` or ``RECONSUME_LATER``."""
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    """After: how the call ended."""
    ended_at_ms: int = 0
    """After: when the call ended, ms since 1970."""


class EndTransactionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a transaction, as it was sent to the broker (``EndTransactionContext``)."""

    producer_group: str
    message: Message | MessageExt
    """As the user sent it, or as the broker asked about it."""
    transaction_id: str
    broker_address: str
    state: str
    """``COMMIT``, ``ROLLBACK`` or ``UNKNOWN``."""
    from_transaction_check: bool
    """Whether the broker had asked."""
    confirmed: bool
    """Whether the broker has stored it."""


EndTransactionHook = Callable[[EndTransactionContext], None]
"""Called on the event loop when the end of a transaction was sent, so it must not block."""


@dataclass(frozen=True)
class SendMessageHook:
    """Two functions, either may be missing; called on the event loop, so they must not block."""

    before: Callable[[SendMessageContext], None] | None = None
    """Called before each attempt."""
    after: Callable[[SendMessageContext], None] | None = None
    """Called when the attempt is answered, or has failed."""


CheckForbiddenHook = Callable[[CheckForbiddenContext], None]
"""Refuses a message by raising, before each attempt; what it raises is the cause of the caller's error."""


@dataclass(frozen=True)
class ConsumeMessageHook:
    """Two functions, either may be missing; called where the listener is: in its thread, or on the event loop."""

    before: Callable[[ConsumeMessageContext], None] | None = None
    """Called before the listener."""
    after: Callable[[ConsumeMessageContext], None] | None = None
    """Called when the listener has returned or raised."""


class SendForbiddenError(ClientError):
    """A check-forbidden hook refused the message; it was not sent."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"a hook forbids this message: {cause}",
            code=int(ResponseCode.NO_PERMISSION),
            next_step="see what the check-forbidden hook of this producer asks for",
        )
        self.__cause__ = cause


def call_all(functions: Iterable[Callable[[C], None] | None], context: C) -> None:
    """Call hooks one after the other; what one raises, be it ``SystemExit``, is logged."""
    for function in functions:
        if function is not None:
            try:
                function(context)
            except BaseException:
                log.exception("hook %r failed", function)


def demand_allowed(hooks: Sequence[CheckForbiddenHook], context: CheckForbiddenContext) -> None:
    """Ask each hook.

    :raises SendForbiddenError: one of them raised.
    """
    for hook in hooks:
        try:
            hook(context)
        except BaseException as error:
            raise SendForbiddenError(error) from error
