"""Quotas of accounts over gRPC: sends, receives and clients beyond them are TOO_MANY_REQUESTS, with the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.proxy.client import Client, receive
from tests.proxy.test_access import ACL_1, ALICE, client_of

from cometmq.auth.quota.model import Limits, Subject
from cometmq.proxy.converter import duration
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import Cluster, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def cluster(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(data=tmp_path, grpc=True, clock=clock, accounts=ACL_1) as running:
        await running.create_topic("Ours")
        yield running


@pytest.fixture
async def alice(cluster: Cluster) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        yield client_of(channel, ALICE)


def limit(cluster: Cluster, subject: str, **limits: int) -> None:
    table = cluster.broker(0).limiter.table
    table.use(table.changed(Subject.parse(subject), Limits(**limits)))


async def soon(clock: VirtualClock, answer: Awaitable[Any]) -> Any:
    """An answer that a denial holds back for a second."""
    task = asyncio.ensure_future(answer)
    while not task.done():
        await asyncio.wait([task], timeout=0.01)  # gRPC's client has threads, which no clock waits for
        clock.advance(0.1)
    return task.result()


@pytest.mark.parametrize("subject", ["account:alice-account", "address:127.0.0.1", "group:Ours"])
async def test_sends_beyond_a_quota_are_told_how_long_to_wait(
    cluster: Cluster, clock: VirtualClock, alice: Client, subject: str
) -> None:
    limit(cluster, subject, bytes_in=1_000)
    assert (await alice.send("Ours", b"x" * 20_000)).status.code == Code.OK
    denied = (await soon(clock, alice.send("Ours", b"more"))).status
    assert denied.code == Code.TOO_MANY_REQUESTS
    assert denied.message.startswith(f"[QUOTA]{subject} is at its limit of 1,000 sent bytes per second: wait ")
    clock.advance(30)
    assert (await alice.send("Ours", b"later")).status.code == Code.OK


async def test_receives_beyond_a_quota_are_told_how_long_to_wait(
    cluster: Cluster, clock: VirtualClock, alice: Client
) -> None:
    for _ in range(40):
        await alice.send("Ours", b"x")
    limit(cluster, "account:alice-account", messages_out=1)
    wanted = receive("Ours", "G", "broker-0", invisible_duration=duration(3_600_000))
    assert len(await alice.receive(wanted)) == 2 + 32
    denied = (await soon(clock, alice.receive(wanted)))[0].status
    assert denied.code == Code.TOO_MANY_REQUESTS
    words = "[QUOTA]account:alice-account is at its limit of 1 received messages per second: wait "
    assert denied.message.startswith(words)
    clock.advance(40)
    assert len(await alice.receive(wanted)) == 2 + 8


async def test_clients_beyond_a_quota_of_connections_are_refused_and_known_ones_go_on(
    cluster: Cluster, clock: VirtualClock, alice: Client
) -> None:
    limit(cluster, "account:alice-account", connections=1)
    assert (await alice.send("Ours", b"first")).status.code == Code.OK
    second = client_of(alice.channel, ALICE)
    denied = (await soon(clock, second.send("Ours", b"second"))).status
    assert denied.code == Code.TOO_MANY_REQUESTS
    assert "is at its limit of 1 connections" in denied.message
    with pytest.raises(grpc.aio.AioRpcError, match="is at its limit of 1 connections"):
        await soon(clock, second.publish("Ours"))
    await alice.publish("Ours")
    left = await alice.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
    assert left.status.code == Code.OK
    assert (await second.send("Ours", b"second")).status.code == Code.OK
