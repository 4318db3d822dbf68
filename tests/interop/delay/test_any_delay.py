"""Real clients send messages that wait for a time of their own: they come then, and recalled ones never do."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.interop.clients import Client, Series
from tests.interop.systems import Deployment

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

LATE_MS = 30_000
"""A busy test machine is late, too; how exact the broker is, `benchmarks/delay.py` tells."""
RECALL_MS = 10_000
"""The least time in which two of four messages are taken back; more by ten times what this client needs to send."""


def wait_for(client: Client, deployment: Deployment, topic: str, count: int) -> list[dict[str, object]]:
    """Everything in the topic, once so many messages are there."""
    return client.read_topic(deployment.address, topic, count)


@pytest.mark.parametrize("name", ["java4", "java4-binary", "java5", "go", "node", "cpp"])
def test_every_client_sends_messages_that_wait(
    cluster: Deployment, clients: GetClient, java: Client, name: str
) -> None:
    """By each property that says how long; those of all wait at the same time."""
    topics = {prop: f"Later-{name}-{prop}" for prop in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")}
    for topic in topics.values():
        java.create_topic(cluster.address, cluster.broker.address, topic)
    client = clients(name)  # it may have to be built
    sent: dict[str, tuple[int, int, int]] = {}
    longest_ms = 0
    for prop, topic in topics.items():
        began_ms = int(time.time() * 1000)
        # A message that is due when it comes is stored at once: its time is later than a client needs to send it.
        deliver_ms = began_ms + 2_000 + 5 * longest_ms
        value = {"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 2_000, "TIMER_DELIVER_MS": deliver_ms}[prop]
        series = Series(topic, 3, body=name, tags=("later",), keys="k{i}", properties={prop: str(value)})
        client.produce(cluster.address, series)
        sent[prop] = value, began_ms, int(time.time() * 1000)
        longest_ms = max(longest_ms, sent[prop][2] - began_ms)
    for prop, (value, began_ms, sent_ms) in sent.items():
        messages = wait_for(java, cluster, topics[prop], 3)
        assert len(messages) == 3
        for message in messages:
            properties = message["properties"]
            assert isinstance(properties, dict)
            stored_ms, due_ms = message["storeTimestamp"], int(properties["TIMER_OUT_MS"])
            assert isinstance(stored_ms, int)
            earliest_ms, latest_ms = began_ms + 2_000, sent_ms + 2_000
            if prop == "TIMER_DELIVER_MS":
                earliest_ms = latest_ms = value
            assert earliest_ms <= due_ms <= latest_ms
            assert due_ms <= stored_ms <= due_ms + LATE_MS
            assert (message["tags"], properties[prop]) == ("later", str(value))


def test_the_java_client_takes_messages_back(cluster: Deployment, clients: GetClient, java: Client, topic: str) -> None:
    java5 = clients("java5")
    began = time.monotonic()
    java5.produce(cluster.address, Series(f"{topic}-before", 1))
    recall_ms = RECALL_MS + round(10_000 * (time.monotonic() - began))
    sent = java5.produce(cluster.address, Series(topic, 4, properties={"TIMER_DELAY_MS": str(recall_ms)}))
    for event in sent[1:3]:
        assert java5.recall(cluster.address, topic, event["recallHandle"]) == event["msgId"]
    messages = wait_for(java, cluster, topic, 2)
    time_over_ms = max(int(message["storeTimestamp"]) for message in messages)  # type: ignore[call-overload]
    again = wait_for(java, cluster, topic, 2)
    assert sorted(str(message["msgId"]) for message in again) == sorted(sent[index]["msgId"] for index in (0, 3))
    assert time_over_ms >= max(int(message["bornTimestamp"]) for message in again) + recall_ms - 1_000  # type: ignore[call-overload]
