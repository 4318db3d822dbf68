"""Delayed messages go only to brokers that deliver them later."""

from __future__ import annotations

from cometmq.client.errors import DelayNotSupportedError
from cometmq.client.instance import ClientInstance
from cometmq.message.message import Message
from cometmq.remoting.codes import RequestCode, ResponseCode


def has_any_delay(message: Message) -> bool:
    """Tell whether a message is delayed by ``delay`` or ``deliver_at``."""
    return message.delay is not None or message.deliver_at is not None


class TimerBrokers:
    """The brokers that are known to support any delay.

    A broker before RocketMQ 5 stores the properties and delivers the message at once. Such a broker does not know
    GET_TIMER_CHECK_POINT (60), so each broker is asked for it once before it gets a delayed message.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._able: set[str] = set()

    def __contains__(self, address: str | None) -> bool:
        return address in self._able

    async def demand(self, address: str, timeout_s: float) -> None:
        """Ask a broker, unless it is known to support any delay.

        :raises DelayNotSupportedError: it does not.
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
