"""Message trace: hooks that tell the trace topic of each message sent and consumed.

``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl`` and ``EndTransactionTraceHookImpl`` of Java's
client: the same records at the same moments. A failed attempt to send is not told, as there.
"""

from __future__ import annotations

from typing import Final

from cometmq.client.hooks import ConsumeMessageContext, ConsumeMessageHook, SendMessageContext, SendMessageHook
from cometmq.client.instance import ClientInstance
from cometmq.client.send_result import SendStatus
from cometmq.client.trace_dispatcher import TraceDispatcher
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message, MessageExt
from cometmq.message.message_type import MessageType
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.properties import KEY_SEPARATOR, KEYS, MSG_REGION, TRACE_ON
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore


class MessageTrace:
    """The trace of one producer or consumer.

    :param kind: ``PRODUCE`` or ``CONSUME``.
    :param topic: the trace topic; ``RMQ_SYS_TRACE_TOPIC`` by default.
    """

    def __init__(self, instance: ClientInstance, group: str, kind: str, topic: str | None) -> None:
        self.dispatcher = TraceDispatcher(instance, group, kind, topic or TRACE_TOPIC)
        self.send_hook: Final = SendMessageHook(after=self._sent)
        self.consume_hook: Final = ConsumeMessageHook(self._before_consumption, self._after_consumption)
        self._group = group
        self._clock = instance.clock
        self._ids = UniqIdGenerator(instance.clock)

    async def close(self) -> None:
        """Send what waits."""
        await self.dispatcher.close()

    def _sent(self, context: SendMessageContext) -> None:
        """Tell of each message of an attempt that was answered; the broker may not want that (``traceOn``)."""
        if not context.results or context.region_id is None or not context.trace_on:
            return
        if context.queue.topic == self.dispatcher.topic:
            return
        cost_ms = (context.ended_at_ms - context.begun_at_ms) // len(context.results)
        for message, result in zip(context.messages, context.results, strict=True):
            self.dispatcher.append(
                Pub(
                    time_ms=context.begun_at_ms,
                    region=context.region_id,
                    group=self._group,
                    topic=message.topic,
                    msg_id=result.msg_id,
                    tags=message.tags,
                    keys=_keys(message),
                    store_host=context.broker_address,
                    body_bytes=context.body_bytes if len(context.messages) == 1 else len(message.body),
                    cost_ms=cost_ms,
                    msg_type=int(context.msg_type),
                    offset_msg_id=result.offset_msg_id,
                    success=result.status is SendStatus.SEND_OK,
                )
            )

    def _before_consumption(self, context: ConsumeMessageContext) -> None:
        told = [message for message in context.messages if self._is_traced(message)]
        if not told:
            return
        request_id = self._ids.next()
        context.props["trace"] = (request_id, told)
        for message in told:
            self.dispatcher.append(
                SubBefore(
                    time_ms=context.begun_at_ms,
                    region=message.properties.get(MSG_REGION),
                    group=self._group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(KEYS),
                )
            )

    def _is_traced(self, message: MessageExt) -> bool:
        return message.topic != self.dispatcher.topic and message.properties.get(TRACE_ON) != "false"

    def _after_consumption(self, context: ConsumeMessageContext) -> None:
        before = context.props.get("trace")
        if not isinstance(before, tuple):
            return
        request_id, told = before
        cost_ms = (context.ended_at_ms - context.begun_at_ms) // len(context.messages)
        for message in told:
            self.dispatcher.append(
                SubAfter(
                    request_id=request_id,
                    msg_id=message.msg_id,
                    cost_ms=cost_ms,
                    success=context.success,
                    keys=message.properties.get(KEYS),
                    context_code=int(context.return_type),
                    time_ms=context.ended_at_ms,
                    group=self._group,
                )
            )

    def end_transaction(
        self,
        message: Message | MessageExt,
        *,
        msg_id: str,
        broker_address: str,
        transaction_id: str,
        state: str,
        from_transaction_check: bool,
    ) -> None:
        """Tell that a half message was ended.

        :param state: the word of RocketMQ: ``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE`` or ``UNKNOW``.
        """
        self.dispatcher.append(
            EndTransaction(
                time_ms=self._clock.now_ms(),
                region="",
                group=self._group,
                topic=message.topic,
                msg_id=msg_id,
                tags=message.tags,
                keys=_keys(message),
                store_host=broker_address,
                msg_type=int(MessageType.TRANS_COMMIT),
                transaction_id=transaction_id,
                transaction_state=state,
                from_transaction_check=from_transaction_check,
            )
        )


def _keys(message: Message | MessageExt) -> str | None:
    keys = message.keys
    return (keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)) or None
