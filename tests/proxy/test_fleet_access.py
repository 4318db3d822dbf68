"""Accounts behind `cometmq proxy`: a client acts with its own permissions, the brokers see the account of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.proxy.client import Client, receive
from tests.proxy.test_access import ACL_1, ALICE, client_of, signed

from cometmq.auth.quota.model import Limits, Subject
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.proxy.standalone import FleetProxy
from cometmq.testing import Cluster

ACCOUNTS: list[Mapping[str, Any]] = [
    *ACL_1,
    {"accessKey": "bob-account", "secretKey": "secret-of-bob", "topicPerms": ["Theirs=PUB"]},
    {"accessKey": "proxy-account", "secretKey": "secret-of-proxy", "admin": True},
]
BOB = signed("bob-account", "secret-of-bob")
PROXY = '{"accessKey":"proxy-account","secretKey":"secret-of-proxy"}'


@dataclass(frozen=True)
class Fleet:
    """A cluster with accounts behind a proxy that has an account of its own."""

    cluster: Cluster
    alice: Client
    bob: Client

    def limit(self, subject: str, **limits: int) -> None:
        table = self.cluster.broker(0).limiter.table
        table.use(table.changed(Subject.parse(subject), Limits(**limits)))


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Cluster(data=tmp_path, accounts=ACCOUNTS) as cluster:
        for topic in ("Ours", "Theirs"):
            await cluster.create_topic(topic)
        proxy = FleetProxy(
            ProxyConfig(
                namesrv_addr=cluster.namesrv_address,
                bind_address="127.0.0.1",
                grpc_server_port=0,
                acl_enable=True,
                acl_path=cluster.broker(0).config.acl_path,
                inner_client_authentication_credentials=PROXY,
            )
        )
        await proxy.start()
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            yield Fleet(cluster, client_of(channel, ALICE), client_of(channel, BOB))
        await proxy.stop()


async def test_each_client_acts_with_its_own_permissions_and_not_with_those_of_the_proxy(fleet: Fleet) -> None:
    alice, bob = fleet.alice, fleet.bob
    verdicts = [(await client.send(topic, b"x")).status.code for client in (alice, bob) for topic in ("Ours", "Theirs")]
    assert verdicts == [Code.OK, Code.UNAUTHORIZED, Code.UNAUTHORIZED, Code.OK]
    assert len(await alice.receive(receive("Ours", "G", "broker-0"))) == 2 + 1
    for client, topic, group in ((alice, "Theirs", "G"), (alice, "Ours", "Other"), (bob, "Theirs", "G")):
        (refused, *_) = await client.receive(receive(topic, group, "broker-0"))
        assert refused.status.code == Code.UNAUTHORIZED
    nobody = Client(alice.channel)
    assert (await nobody.send("Ours", b"x")).status.code == Code.UNAUTHORIZED
    wrong = client_of(alice.channel, signed("alice-account", "secret-of-bob"))
    assert (await wrong.send("Ours", b"x")).status.code == Code.UNAUTHORIZED


async def test_a_client_without_permission_does_not_learn_whether_a_topic_exists(fleet: Fleet) -> None:
    answers = []
    for topic in ("Theirs", "Nowhere"):
        route = await fleet.alice.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name=topic)))
        answers.append((route.status.code, route.status.message.replace(topic, "TOPIC")))
    assert answers[0] == answers[1]
    assert answers[0][0] == Code.UNAUTHORIZED


async def test_the_brokers_count_all_clients_as_the_account_of_the_proxy(fleet: Fleet) -> None:
    fleet.limit("account:alice-account", bytes_in=1_000)
    for _ in range(3):
        assert (await fleet.alice.send("Ours", b"x" * 20_000)).status.code == Code.OK
    fleet.limit("account:proxy-account", bytes_in=1_000)
    assert (await fleet.bob.send("Theirs", b"x" * 20_000)).status.code == Code.OK
    denied = (await asyncio.wait_for(fleet.alice.send("Ours", b"more"), 10)).status
    assert denied.code == Code.TOO_MANY_REQUESTS
    words = "[QUOTA]account:proxy-account is at its limit of 1,000 sent bytes per second: wait "
    assert denied.message.startswith(words)


async def test_the_brokers_count_groups_of_clients_each_for_itself(fleet: Fleet) -> None:
    fleet.limit("group:Ours", bytes_in=1_000)
    assert (await fleet.alice.send("Ours", b"x" * 20_000)).status.code == Code.OK
    denied = (await asyncio.wait_for(fleet.alice.send("Ours", b"more"), 10)).status
    assert denied.code == Code.TOO_MANY_REQUESTS
    assert denied.message.startswith("[QUOTA]group:Ours is at its limit of ")
    for _ in range(3):
        assert (await fleet.bob.send("Theirs", b"x" * 20_000)).status.code == Code.OK
