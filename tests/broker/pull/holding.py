"""Pulls that a broker holds."""

from __future__ import annotations

import asyncio

from tests.broker.wire import Wire, pull_header

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand


async def held(broker: Broker, wire: Wire, count: int = 1) -> None:
    """Wait until so many pulls are held."""
    for _ in range(2000):
        if len(broker.hold) == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(broker.hold)} pulls are held, not {count}")


def post_pull(wire: Wire, topic: str = "T", **fields: object) -> RemotingCommand:
    command = wire.command(RequestCode.PULL_MESSAGE, pull_header(topic, **({"wait_ms": 15_000} | fields)))
    wire.post(command)
    return command
