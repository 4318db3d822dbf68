"""Clusters with TLS and accounts: clients of the cluster may do everything, others what their account may."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from tests.helpers.waiting import until

from cometmq.client import AccessDeniedError, Credentials, Message, Producer, Security
from cometmq.client.sync import SyncAdmin, SyncProducer
from cometmq.testing import Cluster, ProcessCluster

BILLING: Final = Credentials("billing-account", "secret-of-billing")
ACCOUNTS: Final = ({"accessKey": BILLING.access_key, "secretKey": BILLING.secret_key, "topicPerms": ["Orders=PUB"]},)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_an_account_may_do_what_its_entry_says(tls: bool) -> None:
    async with Cluster(slaves=1, tls=tls, accounts=ACCOUNTS) as cluster:
        await cluster.create_topic("Orders")
        await cluster.create_topic("Closed")
        await cluster.send(Message("Closed", b"by the cluster itself"))
        security = replace(cluster.security, credentials=BILLING)
        async with Producer("billing", cluster.namesrv_address, security=security) as producer:
            await producer.send(Message("Orders", b"allowed"))
            with pytest.raises(AccessDeniedError):
                await producer.send(Message("Closed", b"denied"))
        await until(cluster.has_replicated)


def test_a_cluster_of_processes_takes_tls_and_accounts_too() -> None:
    with ProcessCluster(tls=True, accounts=()) as cluster:
        with SyncAdmin(cluster.namesrv_address, security=cluster.security) as admin:
            admin.create_topic("Orders", queues=1)
        with SyncProducer("billing", cluster.namesrv_address, security=cluster.security) as producer:
            producer.send(Message("Orders", b"allowed"))
        stranger = replace(cluster.security, credentials=None)
        with (
            SyncProducer("billing", cluster.namesrv_address, security=stranger) as producer,
            pytest.raises(AccessDeniedError),
        ):
            producer.send(Message("Orders", b"denied"))


@pytest.mark.cometmq(tls=True)
async def test_the_marker_has_the_same_options(cometmq_cluster: Cluster, cometmq_topic: str) -> None:
    assert cometmq_cluster.security.tls is not None
    sent = await cometmq_cluster.send(Message(cometmq_topic, b"by TLS"))
    assert sent.queue.topic == cometmq_topic
    assert cometmq_cluster.security == Security(None, cometmq_cluster.security.tls)
