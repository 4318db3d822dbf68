"""A topic is deleted and made anew while real clients consume it: they get all messages of its new life."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.interop.clients import PATIENCE_S, Client, Series, seen
from tests.interop.conftest import wanted_systems
from tests.interop.systems import Deployment, System

from cometmq.client import Admin

pytestmark = pytest.mark.interop

OLD = 50
NEW = 80
"""More than before, so that the offset of the old topic is one of the new, too."""


@pytest.mark.skipif(wanted_systems() != [System.COMETMQ], reason="Apache's consumers go on at offsets of the old topic")
@pytest.mark.parametrize("name", ["java4", "java5"])
async def test_a_running_consumer_gets_all_messages_of_the_new_life(
    cluster: Deployment, clients: Callable[[str], Client], java: Client, topic: str, group: str, name: str
) -> None:
    topic = f"{topic}-anew"
    java.create_topic(cluster.address, cluster.broker.address, topic, 1)
    member = clients(name).start_consuming(cluster.address, topic, group)
    java.produce(cluster.address, Series(topic, OLD, body="old"))
    member.wait_until(lambda: len(member.named("message")) >= OLD, PATIENCE_S, "it reads the old topic")
    async with Admin(cluster.address) as admin:
        await admin.delete_topic(topic)
        await admin.create_topic(topic, queues=1)
    new = Series(topic, NEW, body="new")
    java.produce(cluster.address, new)

    member.wait_until(lambda: len(member.named("message")) >= OLD + NEW, PATIENCE_S, "it reads the new topic")
    member.stop()
    assert seen(member.named("message")[OLD:]) == sorted(new.expected())
