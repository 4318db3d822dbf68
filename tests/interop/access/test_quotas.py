"""Real clients over their quotas: every send is stored, every message is received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.interop.clients import Client, Series, seen
from tests.interop.systems import Deployment, System

from cometmq.client.admin import Admin
from cometmq.remoting.admin_headers import PutQuotaRequestHeader

pytestmark = pytest.mark.interop


def limit(cluster: Deployment, quota: PutQuotaRequestHeader) -> None:
    async def put() -> None:
        async with Admin(cluster.address) as admin:
            await admin.put_quota(quota, address=cluster.broker.address)

    asyncio.run(put())


def delayed(cluster: Deployment, subject: str) -> int:
    async def ask() -> int:
        async with Admin(cluster.address) as admin:
            found = await admin.quotas(subject, address=cluster.broker.address)
            return found[cluster.broker.address][0].delayed

    return asyncio.run(ask())


def free(cluster: Deployment, subject: str) -> None:
    async def delete() -> None:
        async with Admin(cluster.address) as admin:
            await admin.delete_quota(subject, address=cluster.broker.address)

    asyncio.run(delete())


@pytest.mark.parametrize("name", ["java4", "java5", "go"])
def test_sends_and_pulls_over_a_quota_wait_and_succeed(
    cluster: Deployment, clients: Callable[[str], Client], java: Client, topic: str, group: str, name: str
) -> None:
    if cluster.broker.system is not System.COMETMQ:
        pytest.skip("Apache has no such quotas")
    client = clients(name)
    series = Series(topic, 10, body=name)
    subject = "address:127.0.0.1"
    limit(cluster, PutQuotaRequestHeader(subject, messages_in=2))  # a slow machine sends more in a second, too
    try:
        sent = client.produce(cluster.address, series)
        assert [event["status"] for event in sent] == ["SEND_OK"] * series.count
        assert delayed(cluster, subject) >= 4, "it was faster than its quota"
    finally:
        free(cluster, subject)
    limit(cluster, PutQuotaRequestHeader(f"group:{group}", messages_out=4))
    messages = client.consume(cluster.address, topic, group, series.count)
    assert seen(messages) == sorted(series.expected())
    free(cluster, f"group:{group}")
