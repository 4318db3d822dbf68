"""A nameserver that accepts connections and answers nothing, as one that got SIGSTOP, holds up nothing but routes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from tests.helpers.waiting import real_time, until

from cometmq.client import (
    ClientInstance,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.message.hosts import parse_address
from cometmq.remoting.client import ClientRpcHook
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, Link, VirtualClock

TOPICS = [f"frozen{number}" for number in range(60)]
"""One question each: more than the time after which a broker forgets a client, when none is answered."""
FROZEN_S = 200
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Requests:
    """The times of the requests to brokers."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.at: dict[int, list[tuple[str, float]]] = defaultdict(list)
        self.hook = ClientRpcHook(before=self._sent)

    def _sent(self, address: str, request: RemotingCommand) -> None:
        self.at[request.code].append((address, self._clock.monotonic()))

    def longest_gap(self, code: RequestCode, since: float, address: str | None = None) -> float:
        """The longest time without such a request, to any broker or to one."""
        sent = [at for to, at in self.at[code] if at > since and address in (None, to)]
        times = [since, *sent, self._clock.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))


@pytest.fixture
async def nameserver(cluster: Cluster, clock: VirtualClock) -> AsyncIterator[Link]:
    """The way to the nameserver of the cluster with all topics."""
    for topic in TOPICS:
        await cluster.create_topic(topic, queues=1)
    link = Link(("127.0.0.1", 0), parse_address(cluster.namesrv_address), clock=clock)
    await link.start()
    yield link
    link.resume()
    await link.stop()


async def frozen_for(clock: VirtualClock, seconds: float) -> None:
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.advance(0.5)
        for _ in range(5):
            await asyncio.sleep(0)
        await real_time(0.001)


@pytest.mark.parametrize("kind", ["push", "orderly push", "lite pull"])
async def test_heartbeats_commits_and_rebalances_go_on(
    cluster: Cluster, clock: VirtualClock, nameserver: Link, kind: str
) -> None:
    await cluster.send(Message(TOPICS[0], b"one"))
    requests = Requests(clock)
    instance = ClientInstance(f"127.0.0.1:{nameserver.port}", hooks=[requests.hook], clock=clock)
    seen: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    consumer: PushConsumer | LitePullConsumer
    if kind == "lite pull":
        consumer = LitePullConsumer("g", config=LitePullConfig(consume_from_where=FIRST), instance=instance)
    else:
        config = PushConfig(consume_from_where=FIRST, orderly=kind == "orderly push")
        consumer = PushConsumer("g", listen, config=config, instance=instance)
    for topic in TOPICS:
        await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(consumer.assignment) == len(TOPICS), clock=clock)
        nameserver.pause()
        since = clock.monotonic()
        await frozen_for(clock, FROZEN_S)
        assert requests.longest_gap(RequestCode.HEART_BEAT, since) <= 35
        assert requests.longest_gap(RequestCode.GET_CONSUMER_LIST_BY_GROUP, since) <= 25
        if kind != "lite pull":
            assert requests.longest_gap(RequestCode.UPDATE_CONSUMER_OFFSET, since) <= 10
        if kind == "orderly push":
            assert requests.longest_gap(RequestCode.LOCK_BATCH_MQ, since) <= 25
        assert cluster.broker(0).clients.consumers.get("g") is not None
        async with Producer("p", instance=cluster.client_instance()) as producer:
            await producer.send(Message(TOPICS[1], b"two"))
        if isinstance(consumer, LitePullConsumer):
            seen += [message.body for message in await consumer.poll(60.0)]
        await until(lambda: b"two" in seen, clock=clock)
        nameserver.resume()


async def test_a_producer_that_only_sends_keeps_its_heartbeats(nameserver: Link, clock: VirtualClock) -> None:
    requests = Requests(clock)
    instance = ClientInstance(f"127.0.0.1:{nameserver.port}", hooks=[requests.hook], clock=clock)
    async with Producer("p", instance=instance) as producer:
        for topic in TOPICS:
            await producer.send(Message(topic, b"x"))
        await frozen_for(clock, 40)
        nameserver.pause()
        since = clock.monotonic()
        await frozen_for(clock, FROZEN_S)
        assert requests.longest_gap(RequestCode.HEART_BEAT, since) <= 35
        nameserver.resume()
