"""Tests of the shop against a real broker, with a clock that the tests move.

pip install 'cometmq[testing]'
pytest examples/testing
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from shop import Shop

from cometmq.client import Message, Producer
from cometmq.client.sync import SyncProducer
from cometmq.testing import Cluster, SyncCluster, wait_until


@pytest.fixture
async def shop(cometmq_cluster: Cluster) -> AsyncIterator[Shop]:
    for topic in ("orders", "shipments", "reminders"):
        await cometmq_cluster.create_topic(topic)
    async with Shop(cometmq_cluster.client_instance) as shop:
        yield shop


@pytest.fixture
async def customer(cometmq_cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("customer", instance=cometmq_cluster.client_instance()) as producer:
        yield producer


async def test_paid_orders_are_shipped(shop: Shop, customer: Producer, cometmq_cluster: Cluster) -> None:
    async with cometmq_cluster.inbox("shipments") as shipments:
        for number in range(3):
            await customer.send(Message("orders", b"tea", keys=(f"order-{number}",), tags="paid"))
        received = await shipments.expect(3, within=5)
        assert sorted(message.keys[0] for message in received) == ["order-0", "order-1", "order-2"]
        await shipments.expect_none(within=60)


async def test_unpaid_orders_are_reminded_of_two_hours_later(
    shop: Shop, customer: Producer, cometmq_cluster: Cluster
) -> None:
    async with cometmq_cluster.inbox("reminders") as reminders:
        await customer.send(Message("orders", b"coffee", keys=("order-7",)))
        await reminders.expect_none(within=timedelta(hours=1, minutes=59))
        (reminder,) = await reminders.expect(1, within=timedelta(minutes=2))
        assert reminder.keys == ("order-7",)


async def test_a_crash_of_the_broker_loses_no_order(shop: Shop, customer: Producer, cometmq_cluster: Cluster) -> None:
    async with cometmq_cluster.inbox("shipments") as shipments:
        await customer.send(Message("orders", b"tea", keys=("order-8",), tags="paid"))
        await cometmq_cluster.kill_broker(0)
        await cometmq_cluster.start_broker(0)
        received = await shipments.expect(1, within=120)
        assert received[0].keys == ("order-8",)


@pytest.mark.cometmq(slaves=1, broker_keys={"brokerRole": "SYNC_MASTER"})
async def test_a_failover_loses_no_order(shop: Shop, customer: Producer, cometmq_cluster: Cluster) -> None:
    assert await wait_until(cometmq_cluster.clock, cometmq_cluster.has_replicated, within=60)
    async with cometmq_cluster.inbox("shipments") as shipments:
        await customer.send(Message("orders", b"tea", keys=("order-10",), tags="paid"))
        await cometmq_cluster.kill_broker(0)
        await cometmq_cluster.promote_slave()
        received = await shipments.expect(1, within=120)
        assert received[0].keys == ("order-10",)


@pytest.mark.cometmq(links=True)
async def test_a_broker_that_stands_still_only_delays(shop: Shop, customer: Producer, cometmq_cluster: Cluster) -> None:
    async with cometmq_cluster.inbox("shipments") as shipments:
        await customer.send(Message("orders", b"tea", keys=("order-9",), tags="paid"))
        with cometmq_cluster.pause_broker(0):
            await shipments.expect_none(within=60)
        await shipments.expect(1, within=120)


def test_without_async(cometmq_sync_cluster: SyncCluster, cometmq_topic: str) -> None:
    with cometmq_sync_cluster.inbox(cometmq_topic) as inbox:
        with SyncProducer("customer", cometmq_sync_cluster.namesrv_address) as producer:
            producer.send(Message(cometmq_topic, b"tea", tags="paid"))
        (order,) = inbox.expect(1, within=30)
        assert order.tags == "paid"
