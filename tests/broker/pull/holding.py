"""Pulls that a broker holds."""

from __future__ import annotations

from tests.broker.wire import Wire, pull_header
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand


async def held(broker: Broker, count: int = 1) -> None:
    """Wait until so many pulls are held."""
    await until(lambda: len(broker.hold) == count)


def post_pull(wire: Wire, topic: str = "T", **fields: object) -> RemotingCommand:
    command = wire.command(RequestCode.PULL_MESSAGE, pull_header(topic, **({"wait_ms": 15_000} | fields)))
    wire.post(command)
    return command
