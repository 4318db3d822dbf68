"""Fail on a message until it is a dead letter, read it there, and send it again.

python examples/retry.py [NAMESRV]
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cometmq.client import Admin, ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer, Retry
from cometmq.client.dead_letters import Ledger, Outcome, read_dead_letters, resend

AFTER_A_SECOND = 1
"""Delay level of the retry; 0 lets the broker choose: 10 s, 30 s, 1 min and so on."""


async def main(namesrv: str) -> None:
    """Fail twice on one message, then send it again and consume it."""
    group = f"billing-{time.time_ns()}"
    broken = True
    taken = asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> Retry | None:
        (message,) = messages
        print(f"attempt {message.reconsume_times + 1} of {message.body.decode()}")
        if broken:
            return Retry(delay_level=AFTER_A_SECOND)
        taken.set()
        return None

    async with Producer("shop", namesrv) as producer:
        await producer.send(Message(f"bills-{group}", b"bill 7"))
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=1)
    consumer = PushConsumer(group, listener, namesrv, config=config)
    await consumer.subscribe(f"bills-{group}")
    async with consumer, Admin(namesrv) as admin:
        letters: list[MessageExt] = []
        while not letters:
            letters = [letter async for letter in read_dead_letters(admin, group)]
            await asyncio.sleep(0.1)
        print(f"given up: {letters[0].body.decode()} of {letters[0].topic}")
        broken = False
        with tempfile.TemporaryDirectory() as directory, Ledger(Path(directory) / "ledger") as ledger:
            await resend(admin, read_dead_letters(admin, group), ledger, report)
        await taken.wait()
        print("taken")


def report(letter: MessageExt, outcome: Outcome, words: str) -> None:
    """Print the result for one dead letter."""
    print(f"{outcome.value}: {letter.body.decode()} {words}".rstrip())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
