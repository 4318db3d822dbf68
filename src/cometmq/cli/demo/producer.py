"""A producer process of the demo: sends its share of the orders, and repeats what was not acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Final

import msgspec

from cometmq.cli.demo.ledger import Ledger
from cometmq.cli.demo.orders import TOPIC, OrderEvent, events_of
from cometmq.cli.demo.worker import Teller, Told
from cometmq.cli.failures import guarded
from cometmq.client.errors import BrokerError, RemotingError, SendFailedError
from cometmq.client.outcomes import PartlySentError
from cometmq.client.producer import Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.loop import fastest_loop
from cometmq.remoting.bodies import MessageQueue

ROUND: Final = 512
"""Events of one round; those of each queue leave as one batch, so that their order is kept."""
PATIENCE_SECONDS: Final = 60.0
"""How long one batch is repeated before the producer gives up."""
PAUSE_SECONDS: Final = 0.1


class Task(msgspec.Struct):
    """What the stage hands to the process as its argument."""

    namesrv: str
    number: int
    producers: int
    events: int
    per_second: float
    ledger: str


class OrderProducer:
    """Sends events queue by queue and writes down what was acknowledged."""

    def __init__(self, task: Task, producer: Producer) -> None:
        self._task = task
        self._producer = producer
        self._ledger = Ledger()
        self._teller = Teller()
        self._retries = 0

    async def run(self) -> None:
        """Send everything, then save the ledger."""
        queues = await self._producer.queues(TOPIC)
        events = events_of(self._task.number, self._task.producers, self._task.events)
        start = SYSTEM_CLOCK.monotonic()
        while chosen := list(itertools.islice(events, ROUND)):
            batches: dict[MessageQueue, list[OrderEvent]] = {}
            for event in chosen:
                batches.setdefault(queues[event.order % len(queues)], []).append(event)
            await asyncio.gather(*(self._send(queue, batch) for queue, batch in batches.items()))
            self._teller.tell(Told(len(self._ledger), self._retries))
            ahead = start + len(self._ledger) / self._task.per_second - SYSTEM_CLOCK.monotonic()
            if ahead > 0:
                await SYSTEM_CLOCK.sleep(ahead)
        self._ledger.save(Path(self._task.ledger))
        self._teller.tell(Told(len(self._ledger), self._retries), now=True)

    async def _send(self, queue: MessageQueue, events: list[OrderEvent]) -> None:
        """Repeat a batch until it is acknowledged; the copies of a lost acknowledgement are the price."""
        messages = [event.to_message() for event in events]
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                results = await self._producer.send_batch(messages, queue=queue)
                break
            except (PartlySentError, BrokerError, RemotingError, SendFailedError) as error:
                self._retries += 1
                if SYSTEM_CLOCK.monotonic() > deadline:
                    raise CometMQError(f"giving up after {PATIENCE_SECONDS:g} s: {error}") from error
                await SYSTEM_CLOCK.sleep(PAUSE_SECONDS)
        now = SYSTEM_CLOCK.now_ms()
        for event, result in zip(events, results, strict=True):
            self._ledger.add(event.number, result.queue.queue_id, result.queue_offset, now)


async def _main(task: Task) -> None:
    config = ProducerConfig(send_timeout_s=2.0)
    async with Producer(f"order-entry-{task.number}", task.namesrv, config=config) as producer:
        await OrderProducer(task, producer).run()


def _run() -> None:
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_main(msgspec.json.decode(sys.argv[1], type=Task)))


if __name__ == "__main__":
    sys.exit(guarded(_run))
