"""Links that misbehave: what clients see of each fault, and that they get over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client import Message, MessageQueue, Producer
from cometmq.client.errors import RemotingError, RemotingTimeoutError
from cometmq.testing import Cluster, Direction, Link, VirtualClock, settle

QUEUE = MessageQueue("orders", "broker-0", 0)
"""A chosen queue means a single attempt, so that each fault shows."""


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(clock=clock, links=True) as cluster:
        await cluster.create_topic("orders")
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        await producer.send(Message("orders", b"first"), queue=QUEUE)
        yield producer


async def bodies(cluster: Cluster, count: int) -> list[bytes]:
    async with cluster.inbox("orders") as inbox:
        received = [message.body for message in await inbox.expect(count, within=60)]
        await inbox.expect_none()
    return received


async def test_everything_passes_a_link(cluster: Cluster, producer: Producer) -> None:
    big = bytes(range(256)) * 4096
    await producer.send(Message("orders", big, properties={}), queue=QUEUE)
    assert cluster.link(0).connections > 0
    assert await bodies(cluster, 2) == [b"first", big]


async def test_a_paused_broker_answers_nobody_and_goes_on_with_what_it_was_sent(
    cluster: Cluster, producer: Producer, clock: VirtualClock
) -> None:
    with cluster.pause_broker(0):
        with pytest.raises(RemotingTimeoutError):
            await clock.run_until(producer.send(Message("orders", b"paused"), queue=QUEUE), 60)
        assert cluster.link(0).connections
        await clock.run_for(150)
        assert not cluster.namesrv.routes.cluster_info().broker_addr_table, "the nameserver heard nothing for 120 s"
    await clock.run_for(60)
    await producer.send(Message("orders", b"resumed"), queue=QUEUE)
    assert await bodies(cluster, 3) == [b"first", b"paused", b"resumed"]


async def test_a_paused_broker_can_be_killed(cluster: Cluster, producer: Producer, clock: VirtualClock) -> None:
    cluster.pause_broker(0)
    await clock.run_for(5)
    await cluster.kill_broker(0)
    await cluster.start_broker(0)
    await clock.run_for(60)
    assert await bodies(cluster, 1) == [b"first"]


async def test_a_test_that_fails_during_a_pause_can_close_its_clients(
    cluster: Cluster, producer: Producer, clock: VirtualClock
) -> None:
    with pytest.raises(TimeoutError), cluster.pause_broker(0):
        await clock.run_until(asyncio.Event().wait(), 5)
    await producer.send(Message("orders", b"second"), queue=QUEUE)


async def test_a_cluster_ends_with_a_paused_broker(cluster: Cluster) -> None:
    cluster.pause_broker(0)


async def test_lost_answers_are_not_lost_messages(cluster: Cluster, producer: Producer, clock: VirtualClock) -> None:
    cluster.link(0).drop(Direction.TO_CLIENT)
    with pytest.raises(RemotingTimeoutError):
        await clock.run_until(producer.send(Message("orders", b"answer lost"), queue=QUEUE), 60)
    cluster.link(0).restore()
    cluster.link(0).drop(Direction.TO_SERVER)
    with pytest.raises(RemotingError):
        await clock.run_until(producer.send(Message("orders", b"request lost"), queue=QUEUE), 60)
    cluster.link(0).restore()
    await clock.run_for(60)
    assert await bodies(cluster, 2) == [b"first", b"answer lost"]


async def test_a_delay_goes_by_the_clock_and_turns_nothing_round(
    cluster: Cluster, producer: Producer, clock: VirtualClock
) -> None:
    cluster.link(0).delay(1.0)
    began = clock.monotonic()
    sends = [producer.send(Message("orders", b"%d" % number), queue=QUEUE) for number in range(5)]
    await clock.run_until(asyncio.gather(*sends), 60)
    assert clock.monotonic() - began == pytest.approx(2.0)
    cluster.link(0).delay(0)
    assert await bodies(cluster, 6) == [b"first", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("size", [0, 3, 4, 50])
@pytest.mark.parametrize("direction", Direction)
async def test_a_connection_cut_in_the_middle_of_a_frame(
    cluster: Cluster, producer: Producer, clock: VirtualClock, direction: Direction, size: int
) -> None:
    cluster.link(0).cut_after(size, direction)
    with pytest.raises(RemotingError):
        await clock.run_until(producer.send(Message("orders", b"cut off"), queue=QUEUE), 60)
    await producer.send(Message("orders", b"next"), queue=QUEUE)
    stored = [b"cut off"] if direction is Direction.TO_CLIENT else []
    assert await bodies(cluster, 2 + len(stored)) == [b"first", *stored, b"next"]


async def test_a_link_that_is_cut_is_opened_again(cluster: Cluster, producer: Producer) -> None:
    cluster.link(0).cut()
    await settle()
    assert cluster.link(0).connections == 0
    await producer.send(Message("orders", b"second"), queue=QUEUE)
    assert await bodies(cluster, 2) == [b"first", b"second"]


async def test_a_killed_broker_behind_a_link(cluster: Cluster, producer: Producer, clock: VirtualClock) -> None:
    await cluster.kill_broker(0)
    with pytest.raises(RemotingError):
        await clock.run_until(producer.send(Message("orders", b"lost"), queue=QUEUE), 60)
    await cluster.start_broker(0)
    await clock.run_for(60)
    await producer.send(Message("orders", b"second"), queue=QUEUE)
    assert await bodies(cluster, 2) == [b"first", b"second"]


async def test_a_slow_reader_slows_the_writer(clock: VirtualClock) -> None:
    received = 0
    read = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read.wait()
        while data := await reader.read(1 << 20):
            received += len(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    link = Link(("127.0.0.1", 0), server.sockets[0].getsockname()[:2], clock=clock)
    await link.start()
    _, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(bytes(64 << 20))
    await settle()
    unsent = writer.transport.get_write_buffer_size()
    assert unsent > 16 << 20, "the link does not take in what it cannot pass on"
    read.set()
    await settle()
    assert received == 64 << 20
    writer.close()
    await writer.wait_closed()
    await settle()
    await link.stop()
    server.close()
    await server.wait_closed()


async def test_a_cluster_without_links_says_how_to_get_them() -> None:
    async with Cluster() as cluster:
        with pytest.raises(ValueError, match="links=True"):
            cluster.pause_broker(0)
