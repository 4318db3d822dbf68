"""Lose a broker while sending: messages go to the other one, and the producer avoids the lost one.

python examples/producer_retries.py        (a nameserver and two brokers run in the program itself)
"""

import asyncio
from collections import Counter

from cometmq.client import (
    Message,
    Producer,
    ProducerConfig,
    SendFailedError,
    SendMessageContext,
    SendMessageHook,
    SendStatus,
)
from cometmq.testing import Cluster

CONFIG = ProducerConfig(
    send_timeout_s=2,  # for all attempts of a message together
    send_msg_max_timeout_per_request_s=0.5,  # of which a broker that hangs costs at most this
    retry_times_when_send_failed=2,  # at another broker where there is one
    retry_another_broker_when_not_store_ok=True,  # also when a message is stored less safely than requested
    send_latency_fault_enable=True,  # avoid brokers that fail or are slow for a while
)


def tell(context: SendMessageContext) -> None:
    """Print each failed attempt; called after every attempt."""
    if context.error is not None:
        print(f"an attempt at {context.queue.broker_name} failed: {type(context.error).__name__}")


async def send(producer: Producer) -> None:
    """Send twenty messages to the topic `payments`."""
    results = [await producer.send(Message("payments", b"payment %d" % number)) for number in range(20)]
    assert all(result.status is SendStatus.SEND_OK for result in results)
    print(", ".join(f"{count} at {name}" for name, count in Counter(r.queue.broker_name for r in results).items()))


async def main() -> None:
    """Send with two brokers, then with one, then with none."""
    async with Cluster(brokers=2) as cluster:
        await cluster.create_topic("payments")
        hooks = [SendMessageHook(after=tell)]
        async with Producer("till", cluster.namesrv_address, config=CONFIG, send_hooks=hooks) as producer:
            await send(producer)
            await cluster.kill_broker(1)
            await send(producer)
            await cluster.kill_broker(0)
            try:
                await producer.send(Message("payments", b"to nobody"))
            except SendFailedError as error:
                print(f"not stored, after {len(error.attempts)} attempts: {error}")


if __name__ == "__main__":
    asyncio.run(main())
