"""Looking things up with the real Java administration client: by key, by either id, by time, routes, statistics."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.clients import KINDS, PATIENCE_S, Client, Series, queue_positions, seen
from tests.interop.systems import CLUSTER_NAME, Deployment

from cometmq.client.sync import SyncAdmin

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]
FAR_FUTURE_MS = 4_000_000_000_000


@pytest.mark.parametrize("name", list(KINDS))
def test_messages_of_every_client_are_found_by_key_and_by_either_id(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, name: str
) -> None:
    series = Series(topic, 6, body=name, keys="order{i} common")
    clients(name).produce(cluster.address, series)
    stored = {message["bodySha256"]: message for message in java.read_topic(cluster.address, topic, 6)}

    def find(key: str) -> list[str]:
        found = java.admin(cluster.address, "query-key", topic=topic, key=key)
        return sorted(message["bodySha256"] for message in found)

    wait_for(lambda: len(java.found(cluster.address, topic, "common")) == 6, "all are in the index", PATIENCE_S)
    assert find("common") == sorted(stored)
    for index in range(series.count):
        message = stored[series.expected_at(index).body_sha256]
        assert find(f"order{index}") == [message["bodySha256"]]
        identifiers = {message["offsetMsgId"]}
        if KINDS[name].writes_time_as_java:
            identifiers.add(message["msgId"])
        else:
            with SyncAdmin(cluster.address) as admin:
                (by_key,) = admin.query_message(topic, message["msgId"], unique_key=True)
            assert by_key.offset_msg_id == message["offsetMsgId"]
        for identifier in identifiers:
            (viewed,) = java.admin(cluster.address, "view", topic=topic, id=identifier)
            assert viewed["bodySha256"] == message["bodySha256"]
            assert (viewed["queueId"], viewed["queueOffset"]) == (message["queueId"], message["queueOffset"])


def test_an_unknown_key_finds_nothing(cluster: Deployment, java: Client, topic: str) -> None:
    java.produce(cluster.address, Series(topic, 1, keys="known"))
    assert java.found(cluster.address, topic, "unknown") == []


def test_offsets_are_found_by_time(cluster: Deployment, java: Client, topic: str) -> None:
    java.produce(cluster.address, Series(topic, 8), "selector")
    stored = java.read_topic(cluster.address, topic, 8)
    first_end_ms = max(message["storeTimestamp"] for message in stored)
    wait_for(lambda: time.time() * 1000 > first_end_ms + 200, "the clock moves on", PATIENCE_S)
    java.produce(cluster.address, Series(topic, 8, first=8), "selector")
    stored = java.read_topic(cluster.address, topic, 16)
    second_start_ms = min(time_ms for message in stored if (time_ms := message["storeTimestamp"]) > first_end_ms)

    times_ms: dict[int, list[int]] = defaultdict(list)
    for message in stored:
        times_ms[message["queueId"]].append(message["storeTimestamp"])

    def nearest(queue: list[int], time_ms: int) -> int:
        """A time between two messages gives the nearer of them, the earlier one of two that are as near."""
        after = bisect_right(queue, time_ms)
        if after in (0, len(queue)):
            return min(after, len(queue) - 1)
        return after if time_ms - queue[after - 1] > queue[after] - time_ms else after - 1

    for time_ms in (second_start_ms - 1, first_end_ms + 1, 1, FAR_FUTURE_MS):
        (result,) = java.admin(cluster.address, "offsets", topic=topic, timestamp=time_ms)
        rows = sorted((row["minOffset"], row["atTime"], row["maxOffset"]) for row in result["value"])
        assert rows == sorted((0, nearest(queue, time_ms), 4) for queue in times_ms.values())


def test_route_cluster_and_statistics_are_told(cluster: Deployment, java: Client, topic: str, group: str) -> None:
    series = Series(topic, 20)
    java.produce(cluster.address, series)
    assert seen(java.consume(cluster.address, topic, group, series.count)) == sorted(series.expected())

    (route,) = java.admin(cluster.address, "route", topic=topic)
    (broker,) = route["value"]["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": cluster.broker.address}
    assert broker["cluster"] == CLUSTER_NAME
    (queue_data,) = route["value"]["queueDatas"]
    assert (queue_data["readQueueNums"], queue_data["writeQueueNums"], queue_data["perm"]) == (4, 4, 6)
    (info,) = java.admin(cluster.address, "cluster")
    assert info["value"]["clusterAddrTable"] == {CLUSTER_NAME: ["broker-a"]}
    (topics,) = java.admin(cluster.address, "topics")
    assert topic in topics["value"]["topicList"]

    counts = {
        queue: len(offsets) for queue, offsets in queue_positions(java.read_topic(cluster.address, topic)).items()
    }
    (stats,) = java.admin(cluster.address, "topic-stats", topic=topic)
    assert stats["value"] == {f"broker-a:{queue}": [0, count] for queue, count in counts.items()}
    wait_for(
        lambda: sum(position for _, position in java.progress(cluster.address, group, topic)) == series.count,
        "the group's offsets have reached the broker",
        PATIENCE_S,
    )
    (runtime,) = java.admin(cluster.address, "runtime", broker=cluster.broker.address)
    assert {"brokerVersionDesc", "putTps", "msgPutTotalTodayNow", "commitLogMaxOffset"} <= set(
        runtime["value"]["table"]
    )


def test_members_of_a_group_are_told(cluster: Deployment, java: Client, topic: str, group: str) -> None:
    member = java.start_consuming(cluster.address, topic, group)
    member.wait_until(lambda: bool(member.named("assigned")), PATIENCE_S, "the member holds queues")
    (connection,) = java.admin(cluster.address, "consumers", group=group)
    member.stop()

    value = connection["value"]
    assert [each["clientId"] for each in value["connectionSet"]] == [member.named("started")[0]["clientId"]]
    assert value["connectionSet"][0]["language"] == "JAVA"
    assert (value["consumeType"], value["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert value["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert set(value["subscriptionTable"]) == {topic, f"%RETRY%{group}"}
