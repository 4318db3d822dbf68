"""Half messages that a stopping broker refuses go to another broker, if they are certainly not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.broker.turn.targets import NotServingError, RefusedError
from cometmq.client import BrokerError, Message, ProducerConfig, TransactionProducer, TransactionState
from cometmq.client.errors import SendFailedError
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import Cluster, VirtualClock

COUNT = 16


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(brokers=2, clock=clock) as cluster:
        await cluster.create_topic("orders", queues=2)
        yield cluster


async def commit(*_: object) -> TransactionState:
    return TransactionState.COMMIT


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[TransactionProducer]:
    producer = TransactionProducer("bank", commit, commit, instance=cluster.client_instance())
    async with producer:
        yield producer


async def test_no_transaction_fails_while_a_broker_stops(
    cluster: Cluster, clock: VirtualClock, producer: TransactionProducer
) -> None:
    sends = [producer.send_in_transaction(Message("orders", b"%02d" % number)) for number in range(COUNT)]
    async with cluster.inbox("orders") as inbox:
        cluster.broker(0).turn.stop()
        results = await clock.run_until(asyncio.gather(*sends), 5)
        assert {result.queue.broker_name for result in results} == {"broker-1"}
        assert all(result.confirmed for result in results)
        await clock.run_for(10)
        assert sorted(message.body for message in inbox.messages) == [b"%02d" % number for number in range(COUNT)]


async def test_a_half_message_that_may_be_stored_is_sent_once(
    cluster: Cluster, clock: VirtualClock, producer: TransactionProducer
) -> None:
    """A master that has lost its set answers with the same code, and cannot know whether the message is stored."""
    for broker in cluster.brokers:
        broker.turn.forbid(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "send the message again"))
    with pytest.raises(BrokerError, match="again") as caught:
        await clock.run_until(producer.send_in_transaction(Message("orders", b"x")), 5)
    assert not caught.value.not_stored


async def test_a_transaction_that_every_broker_refuses_fails_in_time(
    cluster: Cluster, clock: VirtualClock, producer: TransactionProducer
) -> None:
    for broker in cluster.brokers:
        broker.turn.forbid(NotServingError("the broker is shutting down"))
    began = clock.monotonic()
    with pytest.raises(SendFailedError, match="shutting down") as caught:
        await clock.run_until(producer.send_in_transaction(Message("orders", b"x")), 10)
    assert clock.monotonic() - began <= ProducerConfig().send_timeout_s
    assert isinstance(caught.value.cause, BrokerError)
    assert caught.value.cause.not_stored
