"""A producer process of the demo: sends its share of the orders and repeats batches without an acknowledgement."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from examples.demo.orders import TOPIC, OrderEvent, events_of
from examples.demo.process import Progress, Reporter, Sent

from cometmq.cli.failures import guarded
from cometmq.client.errors import BrokerError, RemotingError, RouteNotFoundError, SendFailedError
from cometmq.client.producer.producer import Producer
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send_result import PartlySentError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.loop import fastest_loop
from cometmq.remoting.bodies import MessageQueue

T = TypeVar("T")

ROUND: Final = 512
"""Events of one round; those of each queue leave as one batch, which keeps their order."""
PATIENCE_SECONDS: Final = 60.0
"""A producer waits for its broker for this long before it gives up."""
PAUSE_SECONDS: Final = 0.1
_AWAY: Final = (PartlySentError, BrokerError, RemotingError, RouteNotFoundError, SendFailedError)
"""Errors of a broker that is away or busy."""


class Task(msgspec.Struct):
    """The argument of the process."""

    namesrv: str
    number: int
    producers: int
    events: int
    per_second: float


class OrderProducer:
    """Sends events queue by queue and counts what is acknowledged."""

    def __init__(self, task: Task, producer: Producer) -> None:
        self._task = task
        self._producer = producer
        self._progress = Progress()
        self._sent: defaultdict[int, Sent] = defaultdict(Sent)

    async def run(self) -> None:
        """Send all events."""
        queues, _ = await patiently(lambda: self._producer.queues(TOPIC))
        events = events_of(self._task.number, self._task.producers, self._task.events)
        start = SYSTEM_CLOCK.monotonic()
        reporter = Reporter()
        while chosen := list(itertools.islice(events, ROUND)):
            batches: dict[MessageQueue, list[OrderEvent]] = {}
            for event in chosen:
                batches.setdefault(queues[event.order % len(queues)], []).append(event)
            await asyncio.gather(*(self._send(queue, batch) for queue, batch in batches.items()))
            reporter.report(self._progress)
            ahead = start + self._progress.done / self._task.per_second - SYSTEM_CLOCK.monotonic()
            if ahead > 0:
                await SYSTEM_CLOCK.sleep(ahead)
        self._progress.queues = dict(self._sent)
        reporter.report(self._progress, now=True)

    async def _send(self, queue: MessageQueue, events: list[OrderEvent]) -> None:
        """Repeat a batch until it is acknowledged; if only the acknowledgement is lost, it is stored twice."""
        messages = [event.to_message() for event in events]
        _, failures = await patiently(lambda: self._producer.send_batch(messages, queue=queue))
        self._progress.retries += failures
        self._progress.done += len(events)
        sent = self._sent[queue.queue_id]
        sent.events += len(events)
        sent.number_sum += sum(event.number for event in events)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Repeat an attempt while the broker is away; return its result and the number of failures before it.

    :raises CometMQError: the broker was away for :data:`PATIENCE_SECONDS`.
    """
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
    failures = 0
    while True:
        try:
            return await attempt(), failures
        except _AWAY as error:
            failures += 1
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise CometMQError(f"giving up after {PATIENCE_SECONDS:g} s: {error}") from error
            await SYSTEM_CLOCK.sleep(PAUSE_SECONDS)


async def _main(task: Task) -> None:
    config = ProducerConfig(send_timeout_s=2.0)
    async with Producer(f"order-entry-{task.number}", task.namesrv, config=config) as producer:
        await OrderProducer(task, producer).run()


def _run() -> None:
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_main(msgspec.json.decode(sys.argv[1], type=Task)))


if __name__ == "__main__":
    sys.exit(guarded(_run))
