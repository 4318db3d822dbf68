"""Lite topics over gRPC: what the endpoint refuses before it asks a broker."""

from __future__ import annotations

import grpc
import pytest
from tests.proxy.client import Client

from cometmq.client import Admin
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.testing import Cluster

ADD, ALL = v2.LiteSubscriptionAction.PARTIAL_ADD, v2.LiteSubscriptionAction.COMPLETE_ADD


@pytest.fixture(autouse=True)
async def lite(cluster: Cluster) -> None:
    """A topic of lite topics, and its group."""
    async with Admin(instance=cluster.client_instance()) as admin:
        await make(admin, "L", "G", **{"+lite.sub.client.quota": "3"})


async def make(admin: Admin, topic: str, group: str, **attributes: str) -> None:
    """Make a topic of lite topics, and a group that reads them."""
    addresses = (await admin.masters()).values()
    for address in addresses:
        await admin.put_topic(TopicConfig(topic_name=topic), address, attribute_change="+message.type=LITE")
    await admin.until_routed(topic, addresses)
    bound = {"+lite.bind.topic": topic, **attributes}
    await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=2, attributes=bound))


def change(*names: str, action: v2.LiteSubscriptionAction = ADD, topic: str = "L", group: str = "G") -> object:
    """A request that changes a subscription."""
    return v2.SyncLiteSubscriptionRequest(
        action=action, topic=v2.Resource(name=topic), group=v2.Resource(name=group), lite_topic_set=names
    )


async def test_settings_have_the_groups_quota(client: Client) -> None:
    stream = await client.subscribe("G", "L", kind=ClientType.LITE_PUSH_CONSUMER)
    assert stream.merged is not None
    subscription = stream.merged.subscription
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (3, 64)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (" ", "lite topic cannot be the char sequence of whitespace"),
        ("x" * 65, "lite topic exceed the max size 64"),
        ("a/b", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
        ("a\n", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
        ("ä", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
    ],
)
async def test_a_name_that_apache_does_not_allow_is_refused(client: Client, name: str, words: str) -> None:
    for answer in (
        await client.ask("SyncLiteSubscription", change(name)),
        await client.send("L", b"body", lite_topic=name, message_type=v2.MessageType.LITE),
    ):
        assert (answer.status.code, answer.status.message) == (Code.ILLEGAL_LITE_TOPIC, words)


async def test_a_set_far_above_the_quota_is_refused(client: Client) -> None:
    answer = await client.ask("SyncLiteSubscription", change(*map(str, range(304)), action=ALL))
    assert answer.status.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert answer.status.message == "lite subscription quota exceeded: 3"


@pytest.mark.parametrize(
    ("group", "topic", "kind", "words"),
    [
        ("Other", "L", ClientType.LITE_PUSH_CONSUMER, "regular group cannot use LITE mode: Other"),
        ("G", "L", ClientType.PUSH_CONSUMER, "lite group must use LITE mode: G"),
        ("G", "T", ClientType.LITE_SIMPLE_CONSUMER, "lite group G is expected to bind topic L, but actual is T"),
    ],
)
async def test_a_consumer_of_another_kind_than_its_groups_cannot_join(
    client: Client, group: str, topic: str, kind: ClientType, words: str
) -> None:
    stream = client.telemetry()
    entries = [v2.SubscriptionEntry(topic=v2.Resource(name=topic))]
    subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
    await stream.call.write(v2.TelemetryCommand(settings=v2.Settings(client_type=kind, subscription=subscription)))
    with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
        await stream.call.read()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_group_of_another_topic_cannot_subscribe(client: Client) -> None:
    answer = await client.ask("SyncLiteSubscription", change("a", topic="T"))
    words = "lite group G is expected to bind topic L, but actual is T"
    assert (answer.status.code, answer.status.message) == (Code.ILLEGAL_TOPIC, words)


async def test_a_topic_takes_messages_of_lite_topics_only_if_its_type_allows_them(client: Client) -> None:
    refused = [await client.send("T", b"body", lite_topic="a"), await client.send("L", b"body")]
    assert [answer.status.code for answer in refused] == [Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE] * 2
    assert [answer.status.message for answer in refused] == [
        f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
        for expected, actual in (("NORMAL", "LITE"), ("LITE", "NORMAL"))
    ]
