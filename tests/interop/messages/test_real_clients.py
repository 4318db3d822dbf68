"""Every real client sends to and receives from a running system, by every kind of send and every kind of consumer.

The same tests run against Apache RocketMQ itself: COMETMQ_INTEROP_SYSTEMS=apache,cometmq.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.interop.clients import APACHE_CANNOT, KINDS, Client, Received, Series, queue_positions, seen
from tests.interop.systems import Deployment, System

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

UNICODE = {"colour": "grün", "名前": "注文 №42", "rocket": "🚀 to the moon", "spaces": " kept "}
COMPRESSED_FLAG = 1
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_TYPES = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}
STALE_MS = 60_000

every_send = pytest.mark.parametrize(
    ("name", "mode"), [(kind.name, mode) for kind in KINDS.values() for mode in kind.send_modes]
)
every_consumer = pytest.mark.parametrize(
    ("name", "mode"), [(kind.name, mode) for kind in KINDS.values() for mode in kind.consume_modes]
)
every_client = pytest.mark.parametrize("name", list(KINDS))


@pytest.fixture(scope="session")
def everything(cluster: Deployment, clients: GetClient, java: Client) -> tuple[str, list[Received]]:
    """A topic to which every client has sent: plain, rich in properties, compressed, batches; and what it must hold."""
    topic = f"Everything-{cluster.broker.system.value}"
    java.create_topic(cluster.address, cluster.broker.address, topic)
    expected: list[Received] = []
    for name in KINDS:
        rich = Series(topic, 9, body=f"{name}-rich", tags=("red", "blue", "rot"), keys="k{i} all", properties=UNICODE)
        big = Series(topic, 2, body=f"{name}-big", body_size=20_000, tags=("blue",), keys="big{i}")
        batch = Series(topic, 12, body=f"{name}-batch", tags=("red",), keys="batch{i}")
        clients(name).produce(cluster.address, rich)
        clients(name).produce(cluster.address, big)
        clients(name).produce(cluster.address, batch, "batch" if name.startswith(("java", "go")) else "sync")
        expected += rich.expected() + big.expected() + batch.expected()
    return topic, expected


def skip_what_apache_cannot(cluster: Deployment, name: str, mode: str) -> None:
    """Skip what is proved on CometMQ alone."""
    if cluster.broker.system is System.APACHE and (name, mode) in APACHE_CANNOT:
        pytest.skip(APACHE_CANNOT[name, mode])


@every_send
def test_every_kind_of_send_is_stored_as_sent(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, name: str, mode: str
) -> None:
    skip_what_apache_cannot(cluster, name, mode)
    series = Series(topic, 24, body=name, tags=("a", "b"), keys="key{i} common", properties=UNICODE)
    started_ms = int(time.time() * 1000)
    sent = clients(name).produce(cluster.address, series, mode)
    messages = java.read_topic(cluster.address, topic, series.count)

    assert seen(messages, UNICODE) == sorted(series.expected())
    assert all(offsets == list(range(len(offsets))) for offsets in queue_positions(messages).values())
    assert all(event["status"] == "SEND_OK" for event in sent)
    assert sum(event["count"] for event in sent) == (0 if mode == "oneway" else series.count)
    for message in messages:
        assert abs(message["bornTimestamp"] - started_ms) < STALE_MS
        assert abs(message["storeTimestamp"] - started_ms) < STALE_MS
        assert message["storeHost"].endswith(cluster.broker.address)
        assert message["reconsumeTimes"] == 0
    if mode in ("sync", "async", "selector"):
        identifier = "msgId" if KINDS[name].makes_unique_keys else "offsetMsgId"
        by_id = {message[identifier]: message for message in messages}
        for event in sent:
            stored = by_id[event[identifier]]
            assert stored["bodySha256"] == series.expected_at(event["index"]).body_sha256
            assert stored["queueOffset"] == event["queueOffset"]
            if KINDS[name].tells_queue_of_send:
                assert stored["queueId"] == event["queueId"]
                assert stored["offsetMsgId"] == event["offsetMsgId"]
    if mode == "selector":
        queue_of = {message["bodySha256"]: message["queueId"] for message in messages}
        queues = [queue_of[series.expected_at(index).body_sha256] for index in range(series.count)]
        assert queues[:4] * 6 == queues
        assert len(set(queues)) == 4


@every_consumer
def test_every_consumer_receives_what_every_client_sent(
    cluster: Deployment, clients: GetClient, everything: tuple[str, list[Received]], group: str, name: str, mode: str
) -> None:
    skip_what_apache_cannot(cluster, name, mode)
    topic, expected = everything
    properties = {"properties": '{"colour": "", "名前": "", "rocket": "", "spaces": ""}'} if name == "cpp" else {}
    messages = clients(name).consume(cluster.address, topic, group, len(expected), mode=mode, **properties)

    assert seen(messages, UNICODE) == sorted(expected)
    assert all(sorted(offsets) == list(range(len(offsets))) for offsets in queue_positions(messages).values())


@every_client
def test_tags_are_filtered(
    cluster: Deployment, clients: GetClient, everything: tuple[str, list[Received]], group: str, name: str
) -> None:
    topic, expected = everything
    wanted = sorted(message.body_sha256 for message in expected if message.tags in ("blue", "rot"))
    messages = clients(name).consume(cluster.address, topic, group, len(wanted), tag="blue || rot", linger_ms=300)

    assert sorted(message["bodySha256"] for message in messages) == wanted


@every_client
def test_a_group_continues_where_it_stopped(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str
) -> None:
    client = clients(name)
    first, second = Series(topic, 16, body="first"), Series(topic, 16, body="second")
    java.produce(cluster.address, first)
    assert seen(client.consume(cluster.address, topic, group, first.count)) == sorted(first.expected())
    java.produce(cluster.address, second)
    messages = client.consume(cluster.address, topic, group, second.count, linger_ms=300)

    assert seen(messages) == sorted(second.expected())


@pytest.mark.parametrize("name", ["java4", "java5", "go"])
def test_bodies_over_the_limit_travel_compressed(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, name: str
) -> None:
    clients(name).produce(cluster.address, Series(topic, 1, body_size=50_000))
    clients(name).produce(cluster.address, Series(topic, 1, first=1, body_size=50_000), compress_over=1_000_000)
    plain, packed = sorted(java.read_topic(cluster.address, topic, 2), key=lambda message: -message["storeSize"])

    assert (packed["sysFlag"] & COMPRESSED_FLAG, plain["sysFlag"] & COMPRESSED_FLAG) == (1, 0)
    assert packed["storeSize"] < 5_000 < plain["storeSize"]
    assert packed["bodySha256"] == Series(topic, 1, body_size=50_000).expected_at(0).body_sha256


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_the_newer_clients_compressions_are_kept_and_understood_by_both_java_clients(
    cluster: Deployment, clients: GetClient, topic: str, compression: str
) -> None:
    series = Series(topic, 4, body_size=30_000, tags=("packed",))
    clients("java5").produce(cluster.address, series, compression=compression)
    for reader in ("java4", "java5"):
        messages = clients(reader).read_topic(cluster.address, topic, series.count)
        assert seen(messages) == sorted(series.expected())
        assert {message["sysFlag"] & COMPRESSION_TYPE_MASK for message in messages} == {COMPRESSION_TYPES[compression]}


def test_a_producer_on_the_vip_channel_reaches_the_broker(cluster: Deployment, java: Client, topic: str) -> None:
    series = Series(topic, 8)
    java.produce(cluster.address, series, vip=1)
    assert seen(java.read_topic(cluster.address, topic, series.count)) == sorted(series.expected())
