"""Consume in order and commit three messages together, as a database write would; the first write is rolled back.

python examples/ordered_commit.py [NAMESRV]
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import ConsumeFromWhere, ConsumeResult, Message, MessageExt, Producer, PushConfig, PushConsumer

TOPIC = "ledger-entries"
ENTRIES = 6
ROWS_AT_ONCE = 3


async def main(namesrv: str) -> None:
    """Send all entries with one sharding key, so to one queue, and commit them three by three."""
    rows: list[str] = []
    writes = 0
    written = 0
    finished = asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> ConsumeResult:
        nonlocal writes, written
        rows.extend(message.body.decode() for message in messages)
        if len(rows) < ROWS_AT_ONCE:
            return ConsumeResult.SUCCESS
        together = ", ".join(rows)
        rows.clear()
        writes += 1
        if writes == 1:
            print(f"not written: {together}")
            return ConsumeResult.ROLLBACK
        print(f"written: {together}")
        written += ROWS_AT_ONCE
        if written == ENTRIES:
            finished.set()
        return ConsumeResult.COMMIT

    async with Producer("bookkeeper", namesrv) as producer:
        for number in range(1, ENTRIES + 1):
            await producer.send(Message(TOPIC, f"entry {number}".encode()), sharding_key="ledger")

    config = PushConfig(orderly=True, auto_commit=False, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("ledger-writer", listener, namesrv, config=config)
    await consumer.subscribe(TOPIC)
    async with consumer:
        await finished.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
