"""A small application: it ships paid orders, and sends a reminder for unpaid ones two hours later.

Everything that it needs of RocketMQ comes in by ``connect``, so that its tests can give it their cluster and
their clock (see test_shop.py beside this file).
"""

from collections.abc import Callable, Sequence

from cometmq.client import ClientInstance, ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer

TWO_HOURS = 18
"""The delay level."""


class Shop:
    """Consumes ``orders``; sends to ``shipments`` and ``reminders``."""

    def __init__(self, connect: Callable[[], ClientInstance]) -> None:
        self._producer = Producer("shop", instance=connect())
        first = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        self._consumer = PushConsumer("shop", self._handle, config=first, instance=connect())

    async def __aenter__(self) -> "Shop":
        await self._producer.start()
        await self._consumer.subscribe("orders")
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()
        await self._producer.close()

    async def _handle(self, messages: Sequence[MessageExt]) -> None:
        for order in messages:
            if order.tags == "paid":
                await self._producer.send(Message("shipments", order.body, keys=order.keys))
            else:
                await self._producer.send(Message("reminders", order.body, keys=order.keys, delay_level=TWO_HOURS))
