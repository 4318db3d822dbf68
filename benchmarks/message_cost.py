"""Measures what a message costs in one process, without broker and sockets; one JSON line a case.

    python -m benchmarks.message_cost consume [--size 128]   from the body of a pull to the listener of our client
    python -m benchmarks.message_cost decode  [--size 1024]  from records to Arrow columns, as Spark gets them
    python -m benchmarks.message_cost filter  [--size 1024]  SQL92 selectors over stored records, of which 10 % match

Each figure is the processor time of the quickest round, so other processes matter little. ``COMETMQ_CORE=python``
measures without the compiled core.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
from benchmarks.rounds import say

from cometmq.broker.limits import MAX_FILTER_WORK
from cometmq.client import MessageExt, PushConfig
from cometmq.client.consumer.consume_service import ConsumeService
from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK
from cometmq.core import PATH
from cometmq.filter import parse_selector
from cometmq.message.hosts import encode_host
from cometmq.message.message import split_records
from cometmq.message.record import encode_record
from cometmq.remoting.bodies import MessageQueue

TOPIC: Final = "Orders"
HOST: Final = encode_host("127.0.0.1", 10_911)
PULLED: Final = 1_024
RECORDS: Final = 3_000
ROUNDS: Final = {"consume": 300, "decode": 15, "filter": 20}
SELECTORS: Final = {
    "text first": "region = 'eu' AND amount > 100 AND kind IN ('buy', 'sell')",
    "numbers first": "amount >= 900 AND amount < 2000.5 AND region <> 'us'",
    "one number": "amount >= 900",
    "OR": "region = 'xx' OR amount >= 900 OR kind = 'none'",
}


def records(count: int, size: int, *, selected: bool = False) -> list[bytes]:
    """Messages of a topic as the log has them, with bodies of so many random bytes.

    :param selected: with properties for the selectors, too.
    """
    found: list[bytes] = []
    offset = 0
    for number in range(count):
        properties = {"UNIQ_KEY": f"7F00000100002A139C6B{number:012X}", "CLUSTER": "DefaultCluster"}
        properties |= {"TAGS": f"Tag{number % 3}", "KEYS": f"order-{number}"}
        if selected:
            matches = number % 10 == 0
            properties |= {"MSG_REGION": "DefaultRegion", "WAIT": "true", "kind": "buy"}
            properties |= {"region": "eu" if matches else "asia", "amount": str(950 if matches else number % 900)}
        record = encode_record(
            topic=TOPIC,
            queue_id=number % 8,
            queue_offset=number,
            physical_offset=offset,
            body=os.urandom(size),
            properties_text="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
            born_timestamp=1_700_000_000_000 + number,
            born_host=HOST,
            store_timestamp=1_700_000_000_001 + number,
            store_host=HOST,
        )
        offset += len(record)
        found.append(record)
    return found


def quickest(what: str, work: Callable[[], object]) -> float:
    """Processor seconds of the quickest round."""
    least = float("inf")
    for _ in range(ROUNDS[what]):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least


def tell(case: str, seconds: float, messages: int) -> None:
    """Print one figure."""
    per_s = round(messages / seconds)
    say(case=case, path=PATH, processor_us_per_message=seconds / messages * 1e6, messages_per_cpu_s=per_s)


class _Instance:
    """The parts of a client that a consume service needs."""

    clock = SYSTEM_CLOCK

    def is_ending(self) -> bool:
        return False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


async def consume_seconds(data: bytes, batch: int) -> float:
    """Processor seconds of one pull, of the quickest round."""
    config = PushConfig(consume_batch_size=batch)
    done = asyncio.Event()
    seen = 0

    async def listen(messages: Sequence[MessageExt]) -> None:
        nonlocal seen
        for message in messages:
            _ = message.body
        seen += len(messages)
        if seen == PULLED:
            done.set()

    def settled(request: ConsumeRequest, _verdict: Verdict) -> None:
        request.process_queue.finish(request)

    service = ConsumeService(listen, 20, cast(ClientInstance, _Instance()), settled)
    queue = ProcessQueue(MessageQueue(TOPIC, "b", 3), config, Budget(1 << 30), service.submit)
    queue.begin(0)
    gc.collect()
    least = float("inf")
    for _ in range(ROUNDS["consume"]):
        seen = 0
        done.clear()
        began = time.process_time()
        queue.take(Chunk(split_records(data, "b"), PULLED, len(data)))
        await done.wait()
        least = min(least, time.process_time() - began)
    service.close()
    return least


def consume(size: int) -> None:
    """A listener of one message, and one of many."""
    data = b"".join(records(PULLED, size))
    for batch in (1, PULLED):
        tell(f"consume, up to {batch} at once", asyncio.run(consume_seconds(data, batch)), PULLED)


def decode(size: int) -> None:
    """All columns, and three of fixed size."""
    from cometmq.spark.records.columns import COLUMNS, arrow_schema
    from cometmq.spark.records.decode import Records
    from cometmq.spark.records.decode import decode as decode_records

    data = b"".join(records(RECORDS, size))
    every = [column.name for column in COLUMNS if column.default]
    for name, columns in (("all columns", every), ("fixed columns", ["queueId", "queueOffset", "storeTimestamp"])):
        schema = arrow_schema(columns)
        work = partial(lambda schema: list(decode_records(Records(data), schema, broker_name="broker-a")), schema)
        tell(f"decode, {name}", quickest("decode", work), RECORDS)


def selectors(size: int) -> None:
    """Each selector over records one by one and together."""
    stored = [memoryview(record) for record in records(RECORDS, size, selected=True)]
    view = memoryview(b"".join(stored) + bytes(1_024))
    sizes = np.array([len(one) for one in stored], np.int64)
    at = sizes.cumsum() - sizes
    for name, text in SELECTORS.items():
        selector = parse_selector(text)
        together = partial(selector.matches_block, view, 0, at, sizes, len(TOPIC), MAX_FILTER_WORK)
        one_by_one = partial(lambda matches: sum(map(matches, stored)), selector.matches_record)
        assert together().wanted.sum() == one_by_one() == RECORDS // 10
        tell(f"filter, {name}, one by one", quickest("filter", one_by_one), RECORDS)
        tell(f"filter, {name}, together", quickest("filter", together), RECORDS)


def main() -> None:
    """Measure one of the three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=ROUNDS)
    parser.add_argument("--size", type=int, help="bytes of a body")
    options = parser.parse_args()
    size = options.size or (128 if options.what == "consume" else 1_024)
    {"consume": consume, "decode": decode, "filter": selectors}[options.what](size)


if __name__ == "__main__":
    main()
