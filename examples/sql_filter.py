"""Consume only messages whose properties match an SQL92 expression; the broker needs enablePropertyFilter=true.

python examples/sql_filter.py [NAMESRV]
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import (
    Admin,
    BrokerError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)

TOPIC = "filtered-orders"
WANTED = "region = 'eu' AND amount > 5 AND kind IN ('buy', 'sell')"


async def main(namesrv: str) -> None:
    """Send thirty orders and consume ten of them."""
    async with Admin(namesrv) as admin, Producer("order-desk", namesrv) as producer:
        await admin.create_topic(TOPIC, queues=4)
        for number in range(30):
            region = "eu" if number % 3 == 0 else "us"
            properties = {"region": region, "amount": str(10 + number), "kind": "buy"}
            await producer.send(Message(TOPIC, b"order %d" % number, properties=properties))

    count = 0
    everything = asyncio.Event()

    async def listen(messages: Sequence[MessageExt]) -> None:
        nonlocal count
        count += len(messages)
        if count >= 10:
            everything.set()

    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("european-orders", listen, namesrv, config=config)
    await consumer.subscribe(TOPIC, WANTED, expression_type="SQL92")
    async with consumer:
        await everything.wait()
    print(f"{count} of 30 orders: {WANTED}")

    wrong = PushConsumer("wrong-orders", listen, namesrv)
    await wrong.subscribe(TOPIC, "amount > > 5", expression_type="SQL92")
    try:
        await wrong.start()
    except BrokerError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
