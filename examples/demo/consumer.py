"""A consumer process of the demo: a member of the group that counts its deliveries."""

from __future__ import annotations

import sys

import msgspec
from examples.demo.orders import GROUP, TOPIC
from examples.demo.process import REPORT_SECONDS, Progress, Reporter

from cometmq.cli.failures import guarded
from cometmq.cli.servers.process import Stopping, run_server
from cometmq.client.consumer.config import ConsumeFromWhere, LitePullConfig
from cometmq.client.consumer.lite_pull_consumer import LitePullConsumer


class Task(msgspec.Struct):
    """The argument of the process."""

    namesrv: str


async def consume(task: Task, stopping: Stopping) -> None:
    """Receive until asked to stop."""
    config = LitePullConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        auto_commit_interval_s=0.5,
        pull_error_delay_s=0.2,
        rebalance_interval_s=2.0,
    )
    delivered = 0
    reporter = Reporter()
    async with LitePullConsumer(GROUP, task.namesrv, config=config) as consumer:
        await consumer.subscribe(TOPIC)
        while not stopping.requested:
            delivered += len(await consumer.poll(REPORT_SECONDS))
            reporter.report(Progress(delivered))
    reporter.report(Progress(delivered), now=True)


def _run() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    run_server(lambda stopping: consume(task, stopping), is_server=False)


if __name__ == "__main__":
    sys.exit(guarded(_run))
