"""Checks that brokers support delayed messages."""

from __future__ import annotations

from cometmq.client.errors import DelayNotSupportedError
from cometmq.client.instance import ClientInstance
from cometmq.message.message import Message
from cometmq.remoting.codes import RequestCode, ResponseCode


def has_any_delay(message: Message) -> bool:
    """Return whether a message is delayed by ``delay`` or ``deliver_at``."""
    return message.delay is not None or message.deliver_at is not None


class TimerBrokers:
    """The brokers that are known to support arbitrary delays.

    A broker before RocketMQ 5 stores the properties and delivers the message immediately. Such a broker does not
    support GET_TIMER_CHECK_POINT (request code 60), so this request is sent to each broker once, before its first
    delayed message.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._able: set[str] = set()

    def __contains__(self, address: str | None) -> bool:
        return address in self._able

    async def demand(self, address: str, timeout_s: float) -> None:
        """Check that a broker supports arbitrary delays, sending a request if this is not known.

        :raises DelayNotSupportedError: the broker does not support them.
        :raises RemotingError: the broker did not answer.
        """
        if address in self._able:
            return
        answer = await self._instance.remoting.invoke(
            address, RequestCode.GET_TIMER_CHECK_POINT, None, timeout_s=timeout_s
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise DelayNotSupportedError(address)
        self._able.add(address)
