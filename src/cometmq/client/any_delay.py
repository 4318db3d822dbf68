"""Any delay at the client: brokers that would not know what to do with it, and taking messages back.

A broker before RocketMQ 5 stores the properties and delivers the message at once. Such a broker does not
know GET_TIMER_CHECK_POINT (60), so each broker is asked for it once before it gets a delayed message.
"""

from __future__ import annotations

from cometmq.client.errors import DelayNotSupportedError, refusal
from cometmq.client.instance import ClientInstance
from cometmq.message.message import Message
from cometmq.message.recall_handle import RecallHandle
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader, RecallMessageResponseHeader


def has_any_delay(message: Message) -> bool:
    """Whether a message asks for a time of its own."""
    return message.delay is not None or message.deliver_at is not None


class TimerBrokers:
    """Which brokers can keep a message until any time."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._able: set[str] = set()

    def __contains__(self, address: str | None) -> bool:
        """Whether the broker is known to be able."""
        return address in self._able

    async def demand(self, address: str, timeout_s: float) -> None:
        """Ask a broker, unless it is known to be able.

        :raises DelayNotSupportedError: it is not.
        :raises RemotingError: it did not answer.
        """
        if address in self._able:
            return
        answer = await self._instance.remoting.invoke(
            address, RequestCode.GET_TIMER_CHECK_POINT, None, timeout_s=timeout_s
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise DelayNotSupportedError(address)
        self._able.add(address)


async def recall(instance: ClientInstance, group: str, handle: str, timeout_s: float) -> str:
    """Take back a message that waits; see :meth:`Producer.recall <cometmq.client.producer.Producer.recall>`."""
    waiting = RecallHandle.decode(handle)
    address = await instance.master_of(MessageQueue(waiting.topic, waiting.broker_name, 0))
    header = RecallMessageRequestHeader(topic=waiting.topic, recall_handle=handle, producer_group=group)
    answer = await instance.remoting.invoke(address, RequestCode.RECALL_MESSAGE, header, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(address, answer.code, answer.remark, f"recalling {waiting.unique_key}")
    return answer.header(RecallMessageResponseHeader).msg_id
