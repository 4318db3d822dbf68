"""Lets hooks see a producer's attempts; made only where there are hooks, so that others pay nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cometmq.client.hooks import (
    CheckForbiddenContext,
    CheckForbiddenHook,
    CommunicationMode,
    SendMessageContext,
    SendMessageHook,
    call_all,
    demand_allowed,
)
from cometmq.client.send_result import SendResult
from cometmq.clock import Clock
from cometmq.message.message import Message
from cometmq.message.message_type import message_type
from cometmq.message.properties import MSG_REGION, TRACE_ON, decode_properties
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from cometmq.client.sender import Delivery


class SendObservation:
    """Asks and tells the hooks of one producer.

    :param group: the producer group.
    """

    def __init__(
        self, group: str, hooks: Sequence[SendMessageHook], forbidden: Sequence[CheckForbiddenHook], clock: Clock
    ) -> None:
        self._group = group
        self._hooks = hooks
        self._forbidden = forbidden
        self._clock = clock

    def begin(self, delivery: Delivery, queue: MessageQueue, address: str) -> None:
        """An attempt begins.

        :raises SendForbiddenError: a hook refuses the message.
        """
        messages = tuple(delivery.batch or (delivery.message,))
        delivery.observed = self.begin_attempt(
            messages,
            delivery.unique_keys,
            delivery.body,
            delivery.properties_text,
            queue,
            address,
            delivery.mode,
        )

    def begin_attempt(
        self,
        messages: tuple[Message, ...],
        msg_ids: tuple[str, ...],
        body: bytes,
        properties_text: str,
        queue: MessageQueue,
        address: str,
        mode: CommunicationMode,
    ) -> SendMessageContext:
        """An attempt begins; what its hooks have seen.

        :raises SendForbiddenError: a hook refuses the message.
        """
        if self._forbidden:
            demand_allowed(
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
        """The broker has stored the message."""
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
        """The attempt has failed."""
        self._after(msgspec.structs.replace(context, error=error, ended_at_ms=self._clock.now_ms()))

    def left(self, context: SendMessageContext) -> None:
        """A oneway message is in the connection's buffer."""
        self._after(msgspec.structs.replace(context, ended_at_ms=self._clock.now_ms()))

    def _after(self, context: SendMessageContext) -> None:
        call_all((hook.after for hook in self._hooks), context)
