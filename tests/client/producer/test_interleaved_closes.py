"""Sends, transactions, connects and closes in every order that an event loop may choose."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.helpers.interleaving import interleaved
from tests.helpers.sockets import open_sockets
from tests.helpers.waiting import until

from cometmq.client import (
    Admin,
    ClientInstance,
    ClientStateError,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    TransactionProducer,
    TransactionState,
)
from cometmq.errors import CometMQError
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock

SEEDS = range(10)


def stored(cluster: Cluster) -> int:
    return sum(cluster.broker(0).store.extent("orders", queue_id)[1] for queue_id in range(2))


async def send(producer: Producer, random: Random, number: int) -> int:
    """Send in one of the ways; return the number of messages that are stored for sure, and at least."""
    body = b"%d" % number
    match random.randrange(5):
        case 0:
            await producer.send(Message("orders", body))
        case 1:
            await producer.send(Message("orders", body + bytes(100_000)))
        case 2:
            return len(await producer.send_many([Message("orders", body)] * 3))
        case 3:
            return len(await producer.send_batch([Message("orders", body)] * 3))
        case _:
            await producer.send_oneway(Message("orders", body))
    return 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_begun_before_a_close_ends_before_it(cluster: Cluster, seed: int) -> None:
    await cluster.create_topic("orders", queues=2)
    with interleaved(seed) as random:
        instance = cluster.client_instance()
        async with Admin(instance=instance):  # the connections stay open after the producer's close
            producer = Producer("p", instance=instance)
            await producer.start()
            sends = [asyncio.create_task(send(producer, random, number)) for number in range(random.randint(1, 20))]
            for _ in range(random.randrange(10)):
                await asyncio.sleep(0)
            closes = [asyncio.create_task(producer.close()) for _ in range(2)]
            done, _ = await asyncio.wait(closes, return_when=asyncio.FIRST_COMPLETED)
            assert all(not one.exception() for one in done)
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            counts = [one for one in outcomes if isinstance(one, int)]
            assert all(isinstance(one, ClientStateError) for one in outcomes if not isinstance(one, int))
            await until(lambda: stored(cluster) >= sum(counts), timeout_s=10)
            assert stored(cluster) == sum(counts)
            await asyncio.gather(*closes)
            with pytest.raises(ClientStateError):
                await producer.send(Message("orders", b"late"))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_transaction_that_was_begun_before_a_close_is_ended_before_it(
    cluster: Cluster, clock: VirtualClock, seed: int
) -> None:
    with interleaved(seed) as random:
        instance = cluster.client_instance()

        async def execute(*_: object) -> TransactionState:
            for _turn in range(random.randrange(20)):
                await asyncio.sleep(0)
            return TransactionState.COMMIT

        async def check(_: MessageExt) -> TransactionState:
            raise AssertionError("the broker had to ask")

        producer = TransactionProducer("t", execute, check, instance=instance)
        await producer.start()
        sending = [asyncio.create_task(producer.send_in_transaction(Message("orders", b"x"))) for _ in range(5)]
        for _ in range(random.randrange(30)):
            await asyncio.sleep(0)
        await producer.close()
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, ClientStateError)]
        ended = [one for one in outcomes if not isinstance(one, BaseException)]
        assert len(refused) + len(ended) == 5
        assert all(one.confirmed for one in ended)
        assert cluster.broker(0).store.extent("orders", 0)[1] == len(ended)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_connection_stays_open_after_a_close(cluster: Cluster, seed: int) -> None:
    before = open_sockets()
    with interleaved(seed) as random:
        for _ in range(5):
            client = RemotingClient()
            asked = [
                asyncio.create_task(client.invoke(cluster.namesrv_address, RequestCode.GET_BROKER_CLUSTER_INFO))
                for _ in range(3)
            ]
            for _ in range(random.randrange(25)):
                await asyncio.sleep(0)
            await client.close()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert all(not isinstance(one, BaseException) or isinstance(one, CometMQError) for one in outcomes)
    await until(lambda: open_sockets() <= before, timeout_s=10)


async def test_a_close_that_is_cancelled_goes_on(cluster: Cluster, clock: VirtualClock) -> None:
    for kind in (Producer, PullConsumer):
        instance = ClientInstance(cluster.namesrv_address, clock=clock)
        client = kind("g", instance=instance)
        await client.start()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await client.close()
        with pytest.raises(ClientStateError, match="closed"):
            instance.acquire()
