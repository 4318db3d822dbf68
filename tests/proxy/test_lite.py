"""Lite topics over gRPC: what the endpoint refuses before it asks a broker."""

from __future__ import annotations

import grpc
import pytest
from tests.proxy.client import Client, receive

from cometmq.client import Admin
from cometmq.proxy.converter import duration
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
        ("a$b", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
        ("ä", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
    ],
)
async def test_a_name_that_apache_does_not_allow_is_refused(client: Client, name: str, words: str) -> None:
    for answer in (
        await client.ask("SyncLiteSubscription", change(name)),
        await client.send("L", b"body", lite_topic=name, message_type=v2.MessageType.LITE),
    ):
        assert (answer.status.code, answer.status.message) == (Code.ILLEGAL_LITE_TOPIC, words)


async def test_a_name_of_64_bytes_is_allowed(client: Client) -> None:
    name = "x" * 64
    assert (await client.ask("SyncLiteSubscription", change(name))).status.code == Code.OK
    sent = await client.send("L", b"body", lite_topic=name, message_type=v2.MessageType.LITE)
    assert sent.status.code == Code.OK


@pytest.mark.parametrize("name", ["a$b", "x" * 65, "a,b", "a\n", ""])
async def test_a_complete_set_with_a_wrong_name_changes_nothing(client: Client, cluster: Cluster, name: str) -> None:
    """Apache's endpoint leaves these names to the broker."""
    assert (await client.ask("SyncLiteSubscription", change("before", action=ALL))).status.code == Code.OK
    answer = await client.ask("SyncLiteSubscription", change("after", name, action=ALL))
    assert answer.status.code != Code.OK, answer
    assert subscribed(cluster) == {"before"}


def subscribed(cluster: Cluster) -> set[str]:
    """The lite topics of the only client."""
    (one,) = cluster.broker(0).lite.subscriptions.clients.values()
    return {one.index.name(number) for number in one.numbers}


async def test_the_quota_of_a_group_is_reached_by_additions_and_by_complete_sets(
    client: Client, cluster: Cluster
) -> None:
    for action, names, code in (
        (ADD, ("s1", "s2"), Code.OK),
        (ADD, ("s3",), Code.OK),
        (ADD, ("s4",), Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (ALL, ("t1", "t2", "t3", "t4"), Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
    ):
        answer = await client.ask("SyncLiteSubscription", change(*names, action=action))
        assert answer.status.code == code, (action, names, answer)
    assert subscribed(cluster) == {"s1", "s2", "s3"}


async def test_an_older_set_that_comes_late_changes_nothing(client: Client, cluster: Cluster) -> None:
    for version, name in ((7, "new"), (6, "old")):
        request = v2.SyncLiteSubscriptionRequest(
            action=ALL,
            topic=v2.Resource(name="L"),
            group=v2.Resource(name="G"),
            lite_topic_set=[name],
            version=version,
        )
        assert (await client.ask("SyncLiteSubscription", request)).status.code == Code.OK
    assert subscribed(cluster) == {"new"}


async def test_a_client_that_never_subscribes_receives_nothing_and_leaves_nothing(
    client: Client, cluster: Cluster
) -> None:
    await client.send("L", b"body", lite_topic="a", message_type=v2.MessageType.LITE)
    await client.subscribe("G", "L", kind=ClientType.LITE_SIMPLE_CONSUMER)
    answers = await client.receive(receive("L", "G", "broker-0", long_polling_timeout=duration(0)))
    assert [answer.status.code for answer in answers if answer.HasField("status")] == [Code.MESSAGE_NOT_FOUND]
    assert cluster.broker(0).lite.subscriptions.clients == {}


async def test_of_a_thousand_subscribers_of_an_exclusive_lite_topic_the_last_one_has_it(
    client: Client, cluster: Cluster
) -> None:
    async with Admin(instance=cluster.client_instance()) as admin:
        await make(admin, "X", "E", **{"+lite.sub.model": "Exclusive"})
    first = await client.subscribe("E", "X", kind=ClientType.LITE_PUSH_CONSUMER)
    asked = change("a", topic="X", group="E")
    assert (await client.ask("SyncLiteSubscription", asked)).status.code == Code.OK
    for _ in range(999):
        last = Client(client.channel)
        assert (await last.ask("SyncLiteSubscription", asked)).status.code == Code.OK
    lost = await first.read()
    assert lost.notify_unsubscribe_lite_command.lite_topic == "a"
    subscriptions = cluster.broker(0).lite.subscriptions
    index = next(iter(subscriptions.clients.values())).index
    assert [one.client_id for one in subscriptions.of(index, index.find("a"))] == [last.client_id]
    assert subscriptions.count == 1


async def test_a_new_lite_topic_beyond_the_quota_of_the_broker_is_refused() -> None:
    keys = {"enableLmqQuota": "true", "maxLmqConsumeQueueNum": "1"}
    lite = v2.MessageType.LITE
    async with Cluster(grpc=True, broker_keys=keys) as cluster:
        async with Admin(instance=cluster.client_instance()) as admin:
            await make(admin, "L", "G")
        async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
            client = Client(channel)
            for _ in range(2):
                assert (await client.send("L", b"1", lite_topic="a", message_type=lite)).status.code == Code.OK
            refused = await client.send("L", b"3", lite_topic="b", message_type=lite)
    assert refused.status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED, refused


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
