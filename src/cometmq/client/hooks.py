"""Hooks of producers and consumers: functions that are called around each attempt to send and each listener call.

``SendMessageHook``, ``CheckForbiddenHook``, ``ConsumeMessageHook`` and ``EndTransactionHook`` of RocketMQ. An error in
a hook is logged and ignored; only a check-forbidden hook can refuse a message by raising an exception. If there are no
hooks, no context is created.
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
from cometmq.clock import Clock
from cometmq.message.message import Message, MessageExt
from cometmq.message.properties import MSG_REGION, TRACE_ON, MessageType, decode_properties, message_type
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

C = TypeVar("C")


class CommunicationMode(Enum):
    """The way a message is sent."""

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
    """One message, or the messages of a batch. They are already encoded, so changes have no effect."""
    msg_ids: tuple[str, ...]
    """The unique key of each message."""
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode
    msg_type: MessageType
    body_bytes: int
    """Size of the sent body, which may be compressed or a complete batch."""
    begun_at_ms: int
    """Start time, ms since 1970."""
    props: dict[str, object]
    """Data that hooks pass from ``before`` to ``after``."""
    results: tuple[SendResult, ...] = ()
    """Set after the attempt: the result of each message; empty after a failure and for a oneway send."""
    error: BaseException | None = None
    """Set after the attempt: the failure of the attempt."""
    ended_at_ms: int = 0
    """Set after the attempt: the time of the answer, ms since 1970."""
    region_id: str | None = None
    """Set after the attempt: the broker's region (``MSG_REGION``)."""
    trace_on: bool = True
    """Set after the attempt: whether the broker allows traces of its messages (``TRACE_ON``)."""


class CheckForbiddenContext(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is about to be sent (``CheckForbiddenContext``)."""

    producer_group: str
    messages: tuple[Message, ...]
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode


class ConsumeReturnType(IntEnum):
    """The end of a listener call, with the numbers of traces (``ConsumeReturnType``)."""

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
    """Start time, ms since 1970."""
    props: dict[str, object]
    """Data that hooks pass from ``before`` to ``after``."""
    success: bool = False
    """Set after the call: whether all messages are consumed."""
    status: str = ""
    """Set after the call: ``CONSUME_SUCCESS`` or ``RECONSUME_LATER``."""
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    """Set after the call: the outcome of the call."""
    ended_at_ms: int = 0
    """Set after the call: end time, ms since 1970."""


class EndTransactionContext(msgspec.Struct, frozen=True, kw_only=True):
    """An END_TRANSACTION that was sent to the broker (``EndTransactionContext``)."""

    producer_group: str
    message: Message | MessageExt
    """The user's message, or the half message about which the broker asked."""
    transaction_id: str
    broker_address: str
    state: str
    """``COMMIT``, ``ROLLBACK`` or ``UNKNOWN``."""
    from_transaction_check: bool
    """True if it answers a check by the broker."""
    confirmed: bool
    """True if the broker has stored it."""


EndTransactionHook = Callable[[EndTransactionContext], None]
"""Called on the event loop after END_TRANSACTION was sent; it must not block."""


@dataclass(frozen=True)
class SendMessageHook:
    """Two optional functions that are called on the event loop; they must not block."""

    before: Callable[[SendMessageContext], None] | None = None
    """Called before each attempt."""
    after: Callable[[SendMessageContext], None] | None = None
    """Called when the attempt was answered or has failed."""


CheckForbiddenHook = Callable[[CheckForbiddenContext], None]
"""Called before each attempt; an exception refuses the message and becomes the cause of the caller's error.
"""


@dataclass(frozen=True)
class ConsumeMessageHook:
    """Two optional functions, called where the listener is called: in its thread or on the event loop."""

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
            next_step="change the message as the check-forbidden hook of this producer demands",
        )
        self.__cause__ = cause


def call_all(functions: Iterable[Callable[[C], None] | None], context: C) -> None:
    """Call hooks one after the other; log every exception that they raise, even ``SystemExit``."""
    for function in functions:
        if function is not None:
            try:
                function(context)
            except BaseException:
                log.exception("hook %r failed", function)


def check_allowed(hooks: Sequence[CheckForbiddenHook], context: CheckForbiddenContext) -> None:
    """Call each check-forbidden hook.

    :raises SendForbiddenError: a hook raised.
    """
    for hook in hooks:
        try:
            hook(context)
        except BaseException as error:
            raise SendForbiddenError(error) from error


class SendObservation:
    """The hooks of one producer group; created only if there are hooks."""

    def __init__(
        self, group: str, hooks: Sequence[SendMessageHook], forbidden: Sequence[CheckForbiddenHook], clock: Clock
    ) -> None:
        self._group = group
        self._hooks = hooks
        self._forbidden = forbidden
        self._clock = clock

    def begin(
        self,
        messages: tuple[Message, ...],
        msg_ids: tuple[str, ...],
        body: bytes,
        properties_text: str,
        queue: MessageQueue,
        address: str,
        mode: CommunicationMode,
    ) -> SendMessageContext:
        """Call the hooks at the beginning of an attempt; return the context for its end.

        :raises SendForbiddenError: a hook refuses the message.
        """
        if self._forbidden:
            check_allowed(
                self._forbidden,
                CheckForbiddenContext(
                    producer_group=self._group,
                    messages=messages,
                    queue=queue,
                    broker_address=address,
                    communication_mode=mode,
                ),
            )
        context = SendMessageContext(
            producer_group=self._group,
            messages=messages,
            msg_ids=msg_ids,
            queue=queue,
            broker_address=address,
            communication_mode=mode,
            msg_type=message_type(decode_properties(properties_text)),
            body_bytes=len(body),
            begun_at_ms=self._clock.now_ms(),
            props={},
        )
        call_all((hook.before for hook in self._hooks), context)
        return context

    def stored(self, context: SendMessageContext, results: Sequence[SendResult], answer: RemotingCommand) -> None:
        """Call the hooks after the broker has stored the message."""
        fields = answer.ext_fields
        self._after(
            msgspec.structs.replace(
                context,
                results=tuple(results),
                ended_at_ms=self._clock.now_ms(),
                region_id=fields.get(MSG_REGION),
                trace_on=fields.get(TRACE_ON) != "false",
            )
        )

    def failed(self, context: SendMessageContext, error: BaseException) -> None:
        """Call the hooks after a failed attempt."""
        self._after(msgspec.structs.replace(context, error=error, ended_at_ms=self._clock.now_ms()))

    def left(self, context: SendMessageContext) -> None:
        """Call the hooks after a oneway message was written to the connection's buffer."""
        self._after(msgspec.structs.replace(context, ended_at_ms=self._clock.now_ms()))

    def _after(self, context: SendMessageContext) -> None:
        call_all((hook.after for hook in self._hooks), context)
