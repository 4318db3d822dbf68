"""A consumer process of the demo: a member of the group that writes down what it received."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from cometmq.cli.demo.ledger import Ledger
from cometmq.cli.demo.orders import GROUP, TOPIC, OrderEvent
from cometmq.cli.demo.worker import TELL_SECONDS, Teller, Told
from cometmq.cli.failures import guarded
from cometmq.cli.process import Stopping, run_server
from cometmq.client.consumer_config import ConsumeFromWhere, LitePullConfig
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.clock import SYSTEM_CLOCK


class Task(msgspec.Struct):
    """What the stage hands to the process as its argument."""

    namesrv: str
    ledger: str


async def consume(task: Task, stopping: Stopping) -> None:
    """Receive until asked to stop, then save the ledger."""
    config = LitePullConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        auto_commit_interval_s=0.5,
        pull_error_delay_s=0.2,
        rebalance_interval_s=2.0,
    )
    ledger = Ledger()
    teller = Teller()
    decode = msgspec.json.Decoder(OrderEvent).decode
    async with LitePullConsumer(GROUP, task.namesrv, config=config) as consumer:
        await consumer.subscribe(TOPIC)
        while not stopping.requested:
            messages = await consumer.poll(TELL_SECONDS)
            now = SYSTEM_CLOCK.now_ms()
            for message in messages:
                ledger.add(decode(message.body).number, message.queue_id, message.queue_offset, now)
            teller.tell(Told(len(ledger)))
    ledger.save(Path(task.ledger))
    teller.tell(Told(len(ledger)), now=True)


def _run() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    run_server(lambda stopping: consume(task, stopping))


if __name__ == "__main__":
    sys.exit(guarded(_run))
