"""Handle orders with FastStream: an invoice for each, a failure, a delay, and a request.

python examples/faststream_orders.py [NAMESRV]
"""

import asyncio
import sys
from datetime import timedelta

from faststream.exceptions import NackMessage

from faststream_cometmq import RocketMQBroker
from faststream_cometmq.annotations import RocketMQMessage

broker = RocketMQBroker(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876", logger=None)
done = asyncio.Event()


@broker.subscriber("faststream-orders", tags="fruit")
@broker.publisher("faststream-invoices")
async def invoice(order: dict[str, int], message: RocketMQMessage) -> dict[str, int]:
    """Return the invoice of an order; the first attempt fails."""
    if message.delivery_attempt == 1:
        print("the order failed, again in a second")
        raise NackMessage(delay=1)
    return {"total": sum(order.values())}


@broker.subscriber("faststream-invoices")
async def show(made: dict[str, int]) -> None:
    """Print an invoice."""
    print(f"an invoice of {made['total']}")
    await broker.publish("pay", "faststream-reminders", delay=timedelta(seconds=1))


@broker.subscriber("faststream-reminders")
async def remind(text: str) -> None:
    """Print a reminder."""
    print(f"a second later: {text}")
    done.set()


@broker.subscriber("faststream-prices")
async def price(fruit: str) -> int:
    """Answer a request."""
    return len(fruit)


async def main() -> None:
    """Send an order, ask for a price, and wait for the reminder."""
    async with broker:
        await broker.start()
        await broker.publish({"apples": 3, "pears": 4}, "faststream-orders", tags="fruit")
        answer = await broker.request("apple", "faststream-prices", timeout=10)
        print(f"an apple costs {await answer.decode()}")
        await asyncio.wait_for(done.wait(), 60)


if __name__ == "__main__":
    asyncio.run(main())
