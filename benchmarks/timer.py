"""How late messages with a delay of their own are: a steady stream among many that wait, and a burst in one moment.

python benchmarks/timer.py [--namesrv HOST:PORT] [--waiting 200000] [--rate 1000] [--seconds 20] [--burst 100000]

Without ``--namesrv`` a CometMQ of its own is started; with it the running one is measured, for instance Apache
RocketMQ 5. Lateness is the store timestamp of the delivered message less TIMER_DELIVER_MS, both of the
broker's clock: run it on the broker's machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime

from cometmq.client import Message, Producer, ProducerConfig, PullConsumer, PullStatus
from cometmq.testing import ProcessCluster

BODY = b"x" * 100
LEAD_S = 30
"""From the first send to the first moment that something is due; sending has to be over by then."""


def moment(ms: int) -> datetime:
    """A time in milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC)


async def send(producer: Producer, topic: str, due_ms: Iterable[int]) -> None:
    """Send one message for each due time."""
    begun = time.perf_counter()
    results = await producer.send_many([Message(topic, BODY, deliver_at=moment(due)) for due in due_ms])
    print(f"  {len(results):,} sent in {time.perf_counter() - begun:.1f} s")


async def lateness_ms(namesrv: str, topic: str) -> list[int]:
    """Of each delivered message, sorted."""
    late: list[int] = []
    async with PullConsumer("TOOLS_CONSUMER", namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (result := await consumer.pull(queue, offset, max_messages=1000)).status is PullStatus.FOUND:
                late += [m.store_timestamp - int(m.properties["TIMER_DELIVER_MS"]) for m in result.messages]
                offset = result.next_offset
    return sorted(late)


def show(what: str, late: Sequence[int]) -> None:
    """One row."""
    percentiles = ", ".join(f"p{share} {late[min(len(late) - 1, len(late) * share // 100)]}" for share in (50, 99))
    print(f"{what}: {len(late):,} delivered; ms late: {percentiles}, most {late[-1]}")


async def measure(namesrv: str, waiting: int, rate: int, seconds: int, burst: int) -> None:
    """Both scenarios, one after the other."""
    async with Producer("bench", namesrv, config=ProducerConfig(max_in_flight=512)) as producer:
        base_ms = int(time.time() * 1000) + LEAD_S * 1000
        count = rate * seconds
        await send(producer, "timer-far", (base_ms + 3_600_000 + number for number in range(waiting - count)))
        await send(producer, "timer-steady", (base_ms + number * 1000 // rate for number in range(count)))
        await asyncio.sleep(max(0.0, base_ms / 1000 - time.time()) + seconds + 2)
        show(f"steady, {rate:,} a second among {waiting:,}", await lateness_ms(namesrv, "timer-steady"))

        base_ms = int(time.time() * 1000) + LEAD_S * 1000
        await send(producer, "timer-burst", [base_ms] * burst)
        await send(producer, "timer-beside", (base_ms + number for number in range(2, 1002, 2)))
        await asyncio.sleep(max(0.0, base_ms / 1000 - time.time()) + 10)
        show("burst, all due in one millisecond", await lateness_ms(namesrv, "timer-burst"))
        show("due in the second after the burst", await lateness_ms(namesrv, "timer-beside"))


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv")
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--burst", type=int, default=100_000)
    options = parser.parse_args()
    with nullcontext() if options.namesrv else ProcessCluster() as cluster:
        namesrv = options.namesrv or (cluster.namesrv_address if cluster is not None else "")
        asyncio.run(measure(namesrv, options.waiting, options.rate, options.seconds, options.burst))


if __name__ == "__main__":
    main()
