"""Clients that are never closed: a warning names each, and their connections end."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.helpers.sockets import open_sockets
from tests.helpers.waiting import until, wait_for

from cometmq.client import (
    Admin,
    ClientInstance,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.sync import (
    SyncAdmin,
    SyncLitePullConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
)
from cometmq.remoting.blocking import BlockingConnection
from cometmq.testing import Cluster, SyncCluster


@contextmanager
def warned(name: str, times: int = 1) -> Iterator[None]:
    """Collect garbage at the end of the block; check the warnings about clients that were not closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    texts = [str(one.message) for one in caught if "was not closed" in str(one.message)]
    assert len(texts) == times
    assert all(text.startswith((f"{name} ", f"{name} of group ")) for text in texts), texts


async def forget_producer(cluster: Cluster) -> None:
    producer = Producer("p", cluster.namesrv_address)
    await producer.start()
    await producer.send(Message("orders", b"x"))


async def forget_transaction_producer(cluster: Cluster) -> None:
    producer = TransactionProducer(
        "t",
        lambda *_: TransactionState.COMMIT,
        lambda *_: TransactionState.COMMIT,
        cluster.namesrv_address,
    )
    await producer.start()
    await producer.send_in_transaction(Message("orders", b"x"))


async def forget_pull_consumer(cluster: Cluster) -> None:
    consumer = PullConsumer("g", cluster.namesrv_address)
    await consumer.start()
    await consumer.pull((await consumer.queues("orders"))[0], 0)


async def forget_lite_pull_consumer(cluster: Cluster) -> None:
    consumer = LitePullConsumer("g", cluster.namesrv_address)
    await consumer.subscribe("orders")
    await consumer.start()
    await consumer.poll(0.1)


async def forget_iterated_push_consumer(cluster: Cluster) -> None:
    consumer = PushConsumer("g", None, cluster.namesrv_address)
    await consumer.subscribe("orders")
    await consumer.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(aiter(consumer)), 0.1)
    await asyncio.sleep(0)  # Python 3.14 has the error of the wait, and with it the consumer, for this round


async def forget_admin(cluster: Cluster) -> None:
    await Admin(cluster.namesrv_address).cluster_info()


@pytest.mark.parametrize(
    ("name", "forget"),
    [
        ("Producer", forget_producer),
        ("TransactionProducer", forget_transaction_producer),
        ("PullConsumer", forget_pull_consumer),
        ("LitePullConsumer", forget_lite_pull_consumer),
        ("PushConsumer", forget_iterated_push_consumer),
        ("Admin", forget_admin),
    ],
)
async def test_a_forgotten_client_warns_and_its_connections_end(
    name: str, forget: Callable[[Cluster], Awaitable[None]]
) -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("orders", queues=2)
        await asyncio.sleep(0)
        before, tasks = open_sockets(), len(asyncio.all_tasks())
        with warned(name, times=3):
            for _ in range(3):
                await forget(cluster)
        await until(lambda: open_sockets() <= before, timeout_s=10)
        await until(lambda: len(asyncio.all_tasks()) <= tasks, timeout_s=10)
        await until(lambda: not cluster.broker(0).clients.consumers.get("g"), timeout_s=10)


async def test_a_consumer_with_a_listener_works_although_nobody_refers_to_it() -> None:
    seen: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    async with Cluster() as cluster, ClientInstance(cluster.namesrv_address) as instance:
        await cluster.create_topic("orders", queues=1)
        consumer = PushConsumer("g", listen, instance=instance)
        await consumer.subscribe("orders")
        await consumer.start()
        del consumer
        with warned("", times=0):
            pass
        await cluster.send(Message("orders", b"x"))
        await until(lambda: seen == [b"x"], timeout_s=10)


async def test_a_forgotten_client_leaves_the_instance_that_it_shares_to_the_others() -> None:
    async with Cluster() as cluster, ClientInstance(cluster.namesrv_address) as instance:
        await cluster.create_topic("orders", queues=1)
        with warned("Producer"):
            await Producer("forgotten", instance=instance).start()
        async with Producer("closed", instance=instance) as producer:
            assert (await producer.send(Message("orders", b"x"))).queue_offset == 0
        async with Admin(instance=instance) as admin:
            assert await admin.cluster_info()


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_client_that_was_closed_or_never_used_warns_nobody(is_started: bool) -> None:
    async with Cluster() as cluster:
        with warned("", times=0):
            for kind in (Producer, PullConsumer, LitePullConsumer):
                client = kind("g", cluster.namesrv_address)
                if is_started:
                    await client.start()
                    await client.close()
            Admin(cluster.namesrv_address)
            del client


def test_a_client_whose_event_loop_has_ended_warns() -> None:
    async def run(address: str) -> Producer:
        producer = Producer("p", address)
        await producer.start()
        await producer.send(Message("orders", b"x"))
        return producer

    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        before = open_sockets()
        with warned("Producer"):
            asyncio.run(run(cluster.namesrv_address))
        wait_for(lambda: open_sockets() <= before, "its sockets are closed", 10)


def test_forgotten_clients_without_await_warn_and_their_connections_end() -> None:
    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        address = cluster.namesrv_address
        with SyncAdmin(address) as admin:
            admin.topics()  # the loop of these clients has its own sockets
            open_ones = open_sockets()
        wait_for(lambda: open_sockets() <= open_ones - 2, "both ends of the connection are closed", 10)
        before = open_sockets()

        def producer() -> None:
            one = SyncProducer("p", address)
            one.start()
            one.send(Message("orders", b"x"))

        def puller() -> None:
            one = SyncPullConsumer("g", address)
            one.start()
            one.queues("orders")

        def lite() -> None:
            one = SyncLitePullConsumer("g", address)
            one.subscribe("orders")
            one.start()
            one.poll(0.1)

        def push() -> None:
            one = SyncPushConsumer("g", None, address)
            one.subscribe("orders")
            one.start()

        def admin_() -> None:
            SyncAdmin(address).topics()

        for name, forget in {
            "Producer": producer,
            "PullConsumer": puller,
            "LitePullConsumer": lite,
            "PushConsumer": push,
            "Admin": admin_,
        }.items():
            with warned(name):
                forget()
            wait_for(lambda: open_sockets() <= before, f"sockets of {name} are closed", 10)


def test_a_child_process_leaves_the_clients_of_its_parent_alone() -> None:
    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        producer = SyncProducer("p", cluster.namesrv_address)
        producer.start()
        producer.send(Message("orders", b"x"))
        child = os.fork()
        if not child:
            try:
                with warned("", times=0):
                    del producer
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.send(Message("orders", b"x")).queue_offset == 1
        producer.close()


def test_a_forgotten_blocking_connection_warns_and_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = open_sockets()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            BlockingConnection(f"127.0.0.1:{server.getsockname()[1]}")
            gc.collect()
        assert "unclosed <socket" in str(caught[0].message)
        assert open_sockets() <= before
