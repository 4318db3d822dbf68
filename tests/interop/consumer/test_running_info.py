"""mqadmin's looks into a consumer, with CometMQ's own consumers and real ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.clients import PATIENCE_S, Client, Series
from tests.interop.systems import Deployment

from cometmq.client import ConsumeFromWhere, MessageExt, PushConfig
from cometmq.client.sync import SyncPushConsumer

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("orderly", [False, True])
def test_mqadmin_looks_into_our_consumer(
    cluster: Deployment, java: Client, topic: str, group: str, orderly: bool
) -> None:
    seen: list[str] = []

    def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.offset_msg_id for message in messages)

    config = PushConfig(orderly=orderly, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = SyncPushConsumer(group, listener, cluster.address, config=config)
    consumer.subscribe(topic)
    with consumer:
        java.produce(cluster.address, Series(topic, 4))
        wait_for(lambda: len(seen) == 4, "everything is consumed", PATIENCE_S)
        client_id = consumer._inner.instance.client_id
        listed = java.mqadmin(cluster.address, "consumerStatus", "-g", group)
        assert client_id in listed
        assert "Same subscription in the same group of consumer" in listed
        shown = java.mqadmin(cluster.address, "consumerStatus", "-g", group, "-i", client_id, "-s")
        assert f"PROP_CONSUMEORDERLY                     : {str(orderly).lower()}" in shown
        assert f"Topic: {topic} " in shown
        assert "#Consumer MQ Detail#" in shown
        assert "thread MainThread" in shown
        done = java.mqadmin(cluster.address, "queryMsgById", "-i", seen[0], "-g", group, "-d", client_id)
        assert "consumeResult=CR_SUCCESS" in done
        assert f"order={str(orderly).lower()}" in done
        wait_for(lambda: seen.count(seen[0]) == 2, "it was consumed once more", PATIENCE_S)
