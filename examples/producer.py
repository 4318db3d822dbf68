"""Send one message, a hundred together, and three of one order in sequence.

python examples/producer.py [NAMESRV]
"""

import asyncio
import sys

from cometmq.client import Message, Producer


async def main(namesrv: str) -> None:
    """Send to the topic `orders`."""
    async with Producer("order-service", namesrv) as producer:
        result = await producer.send(Message("orders", b"created", tags="created", keys=("order-1",)))
        print(f"{result.status.name}: queue {result.queue.queue_id}, offset {result.queue_offset}, id {result.msg_id}")

        results = await producer.send_many([Message("orders", b"order %d" % number) for number in range(100)])
        print(f"{len(results)} messages in {len({result.queue for result in results})} queues")

        for state in (b"paid", b"packed", b"sent"):
            result = await producer.send(Message("orders", state), sharding_key="order-1")
            print(f"{state.decode()}: queue {result.queue.queue_id}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
