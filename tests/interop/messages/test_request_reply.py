"""Requests and replies between real clients and CometMQ's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from tests.interop.clients import REPLIERS, REQUESTERS, Client, Series
from tests.interop.systems import Deployment

from cometmq.client import ConsumeFromWhere, Message, MessageExt, PushConfig
from cometmq.client.sync import SyncProducer, SyncPushConsumer

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]


# A Go requester does not get the reply of a Go replier, over Apache's broker neither.
PAIRS = [pair for pair in product(REQUESTERS, REPLIERS) if pair != ("go", "go")]


@pytest.mark.parametrize(("requester", "replier"), PAIRS)
def test_real_clients_ask_and_reply(
    cluster: Deployment, clients: GetClient, topic: str, group: str, requester: str, replier: str
) -> None:
    service = clients(replier).start_consuming(cluster.address, topic, group, reply=1)
    replies = clients(requester).request(cluster.address, Series(topic, 3, body="ask"))
    service.stop()
    assert replies == ["re: ask-0", "re: ask-1", "re: ask-2"]


@pytest.mark.parametrize("replier", REPLIERS)
def test_real_clients_reply_to_ours(
    cluster: Deployment, clients: GetClient, topic: str, group: str, replier: str
) -> None:
    service = clients(replier).start_consuming(cluster.address, topic, group, reply=1)
    with SyncProducer("interop-asker", cluster.address) as producer:
        for body in (b"one", b"two"):
            assert producer.request(Message(topic, body), timeout_s=60).body == b"re: " + body
    service.stop()


@pytest.mark.parametrize("requester", REQUESTERS)
def test_ours_replies_to_real_clients(
    cluster: Deployment, clients: GetClient, topic: str, group: str, requester: str
) -> None:
    answered = threading.Semaphore(0)
    with SyncProducer("interop-replier", cluster.address) as replier:

        def listener(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                replier.reply(message, b"re: " + message.body)
                answered.release()

        config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = SyncPushConsumer(group, listener, cluster.address, config=config)
        consumer.subscribe(topic)
        with consumer:
            replies = clients(requester).request(cluster.address, Series(topic, 3, body="ask"))
    assert replies == ["re: ask-0", "re: ask-1", "re: ask-2"]
