"""Consume the topic `orders` as a member of a group, until interrupted or until COUNT messages have come.

python examples/consumer.py [NAMESRV [COUNT]]
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import ConsumeFromWhere, MessageExt, PushConfig, PushConsumer


async def main(namesrv: str, count: int) -> None:
    """Print every message."""
    seen = 0

    async def listener(messages: Sequence[MessageExt]) -> None:
        nonlocal seen
        for message in messages:
            print(f"{message.topic}/{message.queue_id}@{message.queue_offset}: {message.body.decode()}")
        seen += len(messages)
        if seen >= count:
            consumer.stop()

    config = PushConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_batch_size=32,
    )
    consumer = PushConsumer("order-printer", listener, namesrv, config=config)
    await consumer.subscribe("orders")
    await consumer.run()


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"
    asyncio.run(main(address, int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize))
