"""A broker that accepts connections and answers nothing holds up nothing at the other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.client.test_frozen_nameserver import Requests, frozen_for
from tests.helpers.waiting import until

from cometmq.client import (
    ClientInstance,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.listener import Verdict
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
FROZEN_S = 60


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_offsets_and_locks_of_other_brokers_are_renewed(clock: VirtualClock, orderly: bool) -> None:
    async with Cluster(2, clock=clock, links=True) as cluster:
        await cluster.create_topic("orders", queues=8)
        requests = Requests(clock)
        instance = ClientInstance(cluster.namesrv_address, hooks=[requests.hook], clock=clock)

        async def listen(_: Sequence[MessageExt]) -> None:
            pass

        consumer = PushConsumer("g", listen, config=PushConfig(orderly=orderly), instance=instance)
        await consumer.subscribe("orders")
        async with consumer:
            await until(lambda: len(consumer.assignment) == 16, clock=clock)
            alive = instance.routes.brokers.master("broker-1")
            with cluster.pause_broker(0):
                since = clock.monotonic()
                await frozen_for(clock, FROZEN_S)
                assert requests.longest_gap(RequestCode.HEART_BEAT, since, alive) <= 35
                assert requests.longest_gap(RequestCode.UPDATE_CONSUMER_OFFSET, since, alive) <= 10
                if orderly:
                    assert requests.longest_gap(RequestCode.LOCK_BATCH_MQ, since, alive) <= 21


async def test_failed_messages_of_another_broker_go_back_at_once(clock: VirtualClock) -> None:
    async with Cluster(2, clock=clock, links=True) as cluster:
        await cluster.create_topic("orders", queues=1)
        let_fail = asyncio.Event()

        async def listen(messages: Sequence[MessageExt]) -> Verdict:
            if messages[0].broker_name == "broker-0":
                await let_fail.wait()
            return ConsumeResult.RECONSUME_LATER

        config = PushConfig(consume_from_where=FIRST, consume_concurrency=50)
        requests = Requests(clock)
        instance = ClientInstance(cluster.namesrv_address, hooks=[requests.hook], clock=clock)
        consumer = PushConsumer("g", listen, config=config, instance=instance)
        await consumer.subscribe("orders")
        async with Producer("p", instance=cluster.client_instance()) as producer, consumer:
            for _ in range(100):
                await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", "broker-0", 0))
            await until(lambda: consumer.cached_count == 100, clock=clock)
            with cluster.pause_broker(0):
                let_fail.set()
                await frozen_for(clock, 1)
                began = clock.monotonic()
                await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", "broker-1", 0))
                alive = instance.routes.brokers.master("broker-1")
                code = RequestCode.CONSUMER_SEND_MSG_BACK
                await until(lambda: any(to == alive for to, _ in requests.at[code]), clock=clock, step_s=0.05)
                assert clock.monotonic() - began < 2
