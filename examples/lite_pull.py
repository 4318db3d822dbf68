"""Poll the topic `orders`, commit the processed messages, then read one queue again from its beginning.

python examples/lite_pull.py [NAMESRV]
"""

import asyncio
import sys

from cometmq.client import ConsumeFromWhere, LitePullConfig, LitePullConsumer


async def main(namesrv: str) -> None:
    """Read all messages of the topic."""
    config = LitePullConfig(
        auto_commit=False,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    async with LitePullConsumer("order-reader", namesrv, config=config) as consumer:
        await consumer.subscribe("orders")
        count = 0
        while messages := await consumer.poll(timeout_s=2):
            count += len(messages)
            await consumer.commit()
        print(f"{count} messages in {len(consumer.assignment)} queues")

        queue = min(consumer.assignment)
        await consumer.seek_to_begin(queue)
        again = await consumer.poll(timeout_s=2)
        print(f"queue {queue.queue_id} again: {len(again)} messages, now at offset {consumer.position(queue)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
