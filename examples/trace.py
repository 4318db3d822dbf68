"""Trace a message from its producer to its consumer, and read the trace.

python examples/trace.py [NAMESRV]        then: cometmq message trace ID
"""

import asyncio
import sys

from cometmq.client import Admin, ConsumeFromWhere, Message, Producer, ProducerConfig, PushConfig, PushConsumer
from cometmq.client.trace import way_of


async def main(namesrv: str) -> None:
    """Send to the topic `parcels-traced` and consume it as `courier`, both with their trace switched on."""
    done = asyncio.Event()

    async def listener(messages: object) -> None:
        await asyncio.sleep(0.02)
        done.set()

    async with Producer("sender", namesrv, config=ProducerConfig(enable_msg_trace=True)) as producer:
        result = await producer.send(Message("parcels-traced", b"a parcel", keys=("parcel-1",)))
    config = PushConfig(enable_msg_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("courier", listener, namesrv, config=config)
    await consumer.subscribe("parcels-traced")
    async with consumer:
        await done.wait()

    async with Admin(namesrv) as admin:
        way = await way_of(admin, result.msg_id)
    for sent, host in way.sends:
        print(f"{sent.group} on {host} sent it to {sent.store_host} in {sent.cost_ms} ms")
    for call in way.consumptions:
        print(f"{call.group} on {call.client_host} had it for {call.cost_ms} ms, success: {call.success}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
