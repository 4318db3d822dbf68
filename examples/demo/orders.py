"""The stream of the demo: orders, with a message for every change of their state.

All changes of an order go to one queue in their order. An order is created, paid, shipped and delivered, or
cancelled on the way. Every run has the same stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from cometmq.message.message import Message

TOPIC: Final = "orders"
COPY: Final = "orders-again"
"""The topic that the archive is replayed to."""
GROUP: Final = "order-desk"
DELIVERED: Final = ("created", "paid", "shipped", "delivered")
CANCELLED_EARLY: Final = ("created", "cancelled")
CANCELLED_LATE: Final = ("created", "paid", "cancelled")
STEPS: Final = 8
"""Event numbers are order × STEPS + step; no order has more steps."""

_LIVES: Final = (DELIVERED, CANCELLED_EARLY, CANCELLED_LATE)
_CHANCES: Final = (88, 7, 5)
_OPEN_ORDERS: Final = 2_000
"""Open orders of one producer at a time."""
_PRODUCTS: Final = ("lamp", "kettle", "desk", "scarf", "bicycle", "globe", "violin", "teapot")
_REGIONS: Final = ("north", "east", "south", "west")


class OrderEvent(msgspec.Struct):
    """The body of a message."""

    order: int
    step: int
    state: str
    product: str
    amount_cents: int
    customer: int

    @property
    def number(self) -> int:
        """The number of this event; it stays the same when the message is sent again."""
        return self.order * STEPS + self.step

    def to_message(self) -> Message:
        """Return the message of this event, with the order as key and the state as tag."""
        return Message(
            TOPIC,
            msgspec.json.encode(self),
            tags=self.state,
            keys=(f"order-{self.order:08d}",),
            properties={"region": _REGIONS[self.customer % len(_REGIONS)]},
        )


class _Order(NamedTuple):
    number: int
    life: tuple[str, ...]
    product: str
    amount_cents: int
    customer: int

    def event(self, step: int) -> OrderEvent:
        return OrderEvent(self.number, step, self.life[step], self.product, self.amount_cents, self.customer)


def events_of(producer: int, producers: int, events: int) -> Iterator[OrderEvent]:
    """Yield ``events`` changes of the orders of one producer; many orders are open at a time."""
    chance = random.Random(producer)
    open_orders: list[tuple[_Order, int]] = []
    next_order = producer
    for _ in range(events):
        if len(open_orders) < _OPEN_ORDERS or chance.random() < 0.25:
            life = chance.choices(_LIVES, _CHANCES)[0]
            order = _Order(
                next_order, life, chance.choice(_PRODUCTS), chance.randrange(500, 90_000), chance.randrange(50_000)
            )
            next_order += producers
            open_orders.append((order, 0))
            place = len(open_orders) - 1
        else:
            place = chance.randrange(len(open_orders))
        order, step = open_orders[place]
        yield order.event(step)
        if step + 1 < len(order.life):
            open_orders[place] = (order, step + 1)
        else:
            open_orders[place] = open_orders[-1]
            open_orders.pop()
