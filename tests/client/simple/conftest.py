"""A cluster and consumers for the tests of simple consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cometmq.client import ClientInstance, ClientRpcHook, SimpleConsumer, SimpleConsumerConfig
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock

NewConsumer = Callable[..., SimpleConsumer]


@pytest.fixture
async def two() -> AsyncIterator[Cluster]:
    """Two brokers with the topics ``a`` and ``b`` of two queues."""
    async with Cluster(2) as cluster:
        for topic in "ab":
            await cluster.create_topic(topic, queues=2)
        yield cluster


@pytest.fixture
async def timed(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A broker whose clock the test moves, with the topic ``a`` of two queues."""
    async with Cluster(clock=clock) as cluster:
        await cluster.create_topic("a", queues=2)
        yield cluster


def consumer(cluster: Cluster, *topics: str, group: str = "workers", **options: Any) -> SimpleConsumer:
    """A consumer of topics; options of its configuration have no prefix."""
    names = SimpleConsumerConfig.__dataclass_fields__
    config = SimpleConsumerConfig(**{name: options.pop(name) for name in list(options) if name in names})
    instance = options.pop("instance", None) or cluster.client_instance()
    return SimpleConsumer(group, dict.fromkeys(topics or ("a",), "*"), instance=instance, config=config, **options)


class Seen:
    """The request codes that a client has sent."""

    def __init__(self, cluster: Cluster) -> None:
        self.codes: list[int] = []
        hook = ClientRpcHook(before=self._before)
        self.instance = ClientInstance(cluster.namesrv_address, clock=cluster.clock, hooks=[hook])

    def _before(self, _address: str, command: RemotingCommand) -> None:
        self.codes.append(command.code)
