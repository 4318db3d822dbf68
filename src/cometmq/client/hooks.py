"""Producer and consumer hooks: functions called around each send attempt and each listener call.

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
    """The ways of sending a message."""

    SYNC = "SYNC"
    """Messages sent with ``send`` and ``send_batch``."""
    ASYNC = "ASYNC"
    """Messages sent with ``send_many``."""
    ONEWAY = "ONEWAY"
    """Messages sent with ``send_oneway``."""


class SendMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send a message or a batch (``SendMessageContext``)."""

    producer_group: str
    messages: tuple[Message, ...]
    """The message, or the messages of a batch. They are already encoded, so changes have no effect."""
    msg_ids: tuple[str, ...]
    """The messages' unique keys."""
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode
    msg_type: MessageType
    body_bytes: int
    """Size of the body as sent: it may be compressed, or contain a complete batch."""
    begun_at_ms: int
    """Start time of the attempt in milliseconds since 1970."""
    props: dict[str, object]
    """Data that hooks pass from ``before`` to ``after``."""
    results: tuple[SendResult, ...] = ()
    """Set after the attempt: each message's result; empty after a failure and for a oneway send."""
    error: BaseException | None = None
    """Set after the attempt: the error, if the attempt failed."""
    ended_at_ms: int = 0
    """Set after the attempt: the time of the response, in milliseconds since 1970."""
    region_id: str | None = None
    """Set after the attempt: the broker's region (``MSG_REGION``)."""
    trace_on: bool = True
    """Set after the attempt: whether the broker allows its messages to be traced (``TRACE_ON``)."""


class CheckForbiddenContext(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is about to be sent (``CheckForbiddenContext``)."""

    producer_group: str
    messages: tuple[Message, ...]
    queue: MessageQueue
    broker_address: str
    communication_mode: CommunicationMode


class ConsumeReturnType(IntEnum):
    """The outcomes of a listener call, with the numbers used in traces (``ConsumeReturnType``)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class ConsumeMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """A listener call (``ConsumeMessageContext``)."""

    consumer_group: str
    messages: tuple[MessageExt, ...]
    begun_at_ms: int
    """Start time of the call in milliseconds since 1970."""
    props: dict[str, object]
    """Data that hooks pass from ``before`` to ``after``."""
    success: bool = False
    """Set after the call: whether all messages were consumed."""
    status: str = ""
    """Set after the call: ``CONSUME_SUCCESS`` or ``RECONSUME_LATER``."""
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    """Set after the call: the outcome of the call."""
    ended_at_ms: int = 0
    """Set after the call: the end time in milliseconds since 1970."""


class EndTransactionContext(msgspec.Struct, frozen=True, kw_only=True):
    """An END_TRANSACTION request that was sent to the broker (``EndTransactionContext``)."""

    producer_group: str
    message: Message | MessageExt
    """The user's message, or the half message that the broker asked about."""
    transaction_id: str
    broker_address: str
    state: str
    """The outcome: ``COMMIT``, ``ROLLBACK`` or ``UNKNOWN``."""
    from_transaction_check: bool
    """True if the request is a response to a check by the broker."""
    confirmed: bool
    """True if the broker has stored the outcome."""


EndTransactionHook = Callable[[EndTransactionContext], None]
"""A function called on the event loop after END_TRANSACTION was sent; it must not block."""


@dataclass(frozen=True)
class SendMessageHook:
    """Two optional functions that are called on the event loop and must not block."""

    before: Callable[[SendMessageContext], None] | None = None
    """Called before each attempt."""
    after: Callable[[SendMessageContext], None] | None = None
    """Called when the attempt has succeeded or failed."""


CheckForbiddenHook = Callable[[CheckForbiddenContext], None]
"""Called before each attempt; an exception rejects the message and becomes the cause of the caller's error."""


@dataclass(frozen=True)
class ConsumeMessageHook:
    """Two optional functions that are called where the listener is called: in its thread or on the event loop."""

    before: Callable[[ConsumeMessageContext], None] | None = None
    """Called before the listener."""
    after: Callable[[ConsumeMessageContext], None] | None = None
    """Called when the listener has returned or raised."""


class SendForbiddenError(ClientError):
    """A check-forbidden hook rejected the message. It was not sent."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"a hook rejected this message: {cause}",
            code=int(ResponseCode.NO_PERMISSION),
            next_step="change the message to satisfy the producer's check-forbidden hook",
        )
        self.__cause__ = cause


def call_all(functions: Iterable[Callable[[C], None] | None], context: C) -> None:
    """Call hooks one after the other; log every exception they raise, even ``SystemExit``."""
    for function in functions:
        if function is not None:
            try:
                function(context)
            except BaseException:
                log.exception("hook %r failed", function)


def check_allowed(hooks: Sequence[CheckForbiddenHook], context: CheckForbiddenContext) -> None:
    """Call the check-forbidden hooks.

    :raises SendForbiddenError: a hook raised.
    """
    for hook in hooks:
        try:
            hook(context)
        except BaseException as error:
            raise SendForbiddenError(error) from error


class SendObservation:
    """The hooks of a producer group."""

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
        """Call the hooks at the start of an attempt; return the context for its end.

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
