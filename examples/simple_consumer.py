"""Do jobs for which one worker at a time is responsible; what a worker does not finish, another does.

python examples/simple_consumer.py [NAMESRV]
"""

import asyncio
import sys

from cometmq.client import Admin, Message, Producer, SimpleConsumer, SimpleConsumerConfig


async def main(namesrv: str) -> None:
    """Send ten jobs; acknowledge those that succeed, and give the one that fails back."""
    async with Admin(namesrv) as admin:
        await admin.create_topic("jobs", queues=4)
    config = SimpleConsumerConfig(invisible_s=30, renew_up_to_s=3600)
    async with (
        Producer("office", namesrv) as producer,
        SimpleConsumer("workers", {"jobs": "*"}, namesrv, config=config) as consumer,
    ):
        for number in range(10):
            await producer.send(Message("jobs", f"job {number}".encode()))
        done = 0
        while done < 10:
            for message in await consumer.receive(wait_s=5):
                if message.body == b"job 7" and message.delivery_attempt == 1:
                    await consumer.change_invisible(message, 1)
                    print("job 7 failed, again in a second")
                else:
                    await consumer.ack(message)
                    done += 1
        print(f"{done} jobs are done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
