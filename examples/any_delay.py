"""Send messages that are delivered later, to the millisecond, and recall one of them.

python examples/any_delay.py [NAMESRV]
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer


async def main(namesrv: str) -> None:
    """Send three messages to the topic `alarms`, of which two are delivered."""
    arrived: asyncio.Queue[tuple[float, MessageExt]] = asyncio.Queue()

    async def remind(messages: Sequence[MessageExt]) -> None:
        for message in messages:
            await arrived.put((time.time(), message))

    began = time.time()
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("sleepers", remind, namesrv, config=config)
    await consumer.subscribe("alarms")
    async with Producer("alarm-clock", namesrv) as producer:
        await producer.send(Message("alarms", b"in a second", delay=timedelta(seconds=1)))
        at = datetime.now(UTC) + timedelta(seconds=4)
        await producer.send(Message("alarms", b"in four seconds", deliver_at=at))
        regretted = await producer.send(Message("alarms", b"never", delay=timedelta(days=365)))
        if regretted.recall_handle is not None:
            await producer.recall(regretted.recall_handle)
        async with consumer:
            for _ in range(2):
                moment, message = await asyncio.wait_for(arrived.get(), 30)
                print(f"{message.body.decode()}: {moment - began:.2f} s")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
