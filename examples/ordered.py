"""Send the states of three orders and consume those of each order in sequence, although one fails at first.

python examples/ordered.py [NAMESRV]
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer, Suspend

STATES = ("created", "paid", "packed", "sent")
ORDERS = ("order-1", "order-2", "order-3")


async def main(namesrv: str) -> None:
    """Use each order as a sharding key: its messages share a queue, which is consumed one call at a time."""
    failed: set[str] = set()
    left = len(STATES) * len(ORDERS)
    finished = asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> Suspend | None:
        nonlocal left
        for position, message in enumerate(messages):
            order, state = message.body.decode().split()
            if order == "order-2" and state == "paid" and order not in failed:
                failed.add(order)
                print(f"{order} failed, once more")
                return Suspend(first=position, seconds=0.2)
            print(f"{order} {state}")
            left -= 1
            if not left:
                finished.set()
        return None

    async with Producer("order-service", namesrv) as producer:
        for state in STATES:
            for order in ORDERS:
                await producer.send(Message("order-states", f"{order} {state}".encode()), sharding_key=order)

    config = PushConfig(orderly=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("order-tracker", listener, namesrv, config=config)
    await consumer.subscribe("order-states")
    async with consumer:
        await finished.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
