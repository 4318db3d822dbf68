"""Send a message that is delivered a second later: delay level 1 of `messageDelayLevel`.

python examples/delay.py [NAMESRV]
"""

import asyncio
import sys
import time
from collections.abc import Sequence

from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer

ONE_SECOND = 1
"""Levels 1 to 18 are 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, unless the broker has others."""


async def main(namesrv: str) -> None:
    """Send one message with a delay and one without, and print when they are delivered."""
    began = time.monotonic()
    both = asyncio.Event()
    seen = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        for message in messages:
            print(f"{message.body.decode()} after {time.monotonic() - began:.1f} s")
            seen.append(message)
        if len(seen) == 2:
            both.set()

    async with Producer("reminders", namesrv) as producer:
        await producer.send(Message("reminders", b"later", delay_level=ONE_SECOND))
        await producer.send(Message("reminders", b"now"))
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer(f"reminded-{time.time_ns()}", listener, namesrv, config=config)
    await consumer.subscribe("reminders")
    async with consumer:
        await both.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
