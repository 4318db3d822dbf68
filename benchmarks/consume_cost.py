"""Measures what a consumed message costs our client, from the body of a pull to its listener; no broker, no sockets.

    python benchmarks/consume_cost.py [--body-bytes 128] [--rounds 300]

One JSON line for each batch size: the least processor time of a message, so other processes matter little.
``COMETMQ_CORE=python`` measures the client without the compiled core.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, cast

from cometmq.client import MessageExt, PushConfig
from cometmq.client.consumer.consume_service import ConsumeService
from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK
from cometmq.core import PATH
from cometmq.message.hosts import encode_host
from cometmq.message.message import split_records
from cometmq.message.record import encode_record
from cometmq.remoting.bodies import MessageQueue

MESSAGES: Final = 1024
"""Messages of one pull."""
HOST: Final = encode_host("127.0.0.1", 10_911)


class _Instance:
    """The parts of a client that a consume service needs."""

    clock = SYSTEM_CLOCK

    def is_ending(self) -> bool:
        return False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


def pulled(body_bytes: int) -> bytes:
    """The body of a pull."""
    return b"".join(
        encode_record(
            topic="orders",
            queue_id=3,
            queue_offset=number,
            physical_offset=number * 300,
            body=b"x" * body_bytes,
            properties_text="UNIQ_KEY\x017F00000100002A9F0000000000001234\x02CLUSTER\x01DefaultCluster",
            born_timestamp=1_700_000_000_000,
            born_host=HOST,
            store_timestamp=1_700_000_000_000,
            store_host=HOST,
        )
        for number in range(MESSAGES)
    )


async def cost_us(data: bytes, batch: int, rounds: int) -> float:
    """Microseconds of processor time for a message, of the quickest round."""
    config = PushConfig(consume_batch_size=batch)
    done = asyncio.Event()
    seen = 0

    async def listen(messages: Sequence[MessageExt]) -> None:
        nonlocal seen
        for message in messages:
            _ = message.body
        seen += len(messages)
        if seen == MESSAGES:
            done.set()

    def settled(request: ConsumeRequest, _verdict: Verdict) -> None:
        request.process_queue.finish(request)

    service = ConsumeService(listen, 20, cast(ClientInstance, _Instance()), settled)
    queue = ProcessQueue(MessageQueue("orders", "b", 3), config, Budget(1 << 30), service.submit)
    queue.begin(0)
    gc.collect()
    least = float("inf")
    for _ in range(rounds):
        seen = 0
        done.clear()
        began = time.process_time()
        queue.take(Chunk(split_records(data, "b"), MESSAGES, len(data)))
        await done.wait()
        least = min(least, time.process_time() - began)
    service.close()
    return least / MESSAGES * 1e6


async def main() -> None:
    """Measure a listener of one message, and one of many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    data = pulled(options.body_bytes)
    for batch in (1, MESSAGES):
        cost = await cost_us(data, batch, options.rounds)
        print(json.dumps({"path": PATH, "batch": batch, "processor_us_per_message": round(cost, 2)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
