"""Consumer groups of real clients: members share queues, take over, broadcast, and keep their offsets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.clients import KINDS, PATIENCE_S, Client, Series, queue_positions, seen
from tests.interop.commands import Event, Running
from tests.interop.conftest import wanted_systems
from tests.interop.systems import Deployment, System

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

# Below the 5 seconds after which brokers look at waiting pulls without an arrival, and the 15 to 20 that clients wait.
WAKE_S = 4.0


def assigned(member: Running) -> int:
    """The number of queues that a Java member holds."""
    events = member.named("assigned")
    return len(events[-1]["queues"]) if events else 0


def received(*members: Running) -> list[Event]:
    """The messages that these members received."""
    return [event for member in members for event in member.named("message")]


@pytest.mark.parametrize("other", ["java4", "java5", "java4-binary", "go", "node"])
def test_a_group_shares_its_queues_and_takes_over_from_a_member_that_leaves(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, group: str, other: str
) -> None:
    stays = java.start_consuming(cluster.address, topic, group)
    stays.wait_until(lambda: assigned(stays) == 4, PATIENCE_S, "the only member holds all queues")
    leaves = clients(other).start_consuming(cluster.address, topic, group)
    stays.wait_until(lambda: assigned(stays) == 2, PATIENCE_S, "two members hold half each")

    shared = Series(topic, 40, body="shared")
    java.produce(cluster.address, shared)
    wait_for(lambda: len(received(stays, leaves)) >= shared.count, "both together receive all", PATIENCE_S)
    assert seen(received(stays, leaves)) == sorted(shared.expected())
    assert len(queue_positions(received(stays))) == len(queue_positions(received(leaves))) == 2

    leaves.stop()
    stays.wait_until(lambda: assigned(stays) == 4, PATIENCE_S, "the member that stays takes over")
    alone = Series(topic, 16, body="alone")
    java.produce(cluster.address, alone)
    wait_for(lambda: len(received(stays, leaves)) >= shared.count + alone.count, "the rest arrives", PATIENCE_S)
    stays.stop()
    assert seen(received(stays, leaves)) == sorted(shared.expected() + alone.expected())


@pytest.mark.parametrize("name", list(KINDS))
def test_a_waiting_consumer_is_woken_by_the_arriving_message(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str
) -> None:
    java.produce(cluster.address, Series(topic, 4), "selector")
    member = clients(name).start_consuming(cluster.address, topic, group)
    member.wait_until(lambda: len(member.named("message")) >= 4, PATIENCE_S, "the member pulls from every queue")
    took_s = []
    for index in range(4, 10):
        java.produce(cluster.address, Series(topic, 1, first=index))
        sent = time.monotonic()
        member.wait_until(lambda: len(member.named("message")) > index, PATIENCE_S, "it arrives")  # noqa: B023
        took_s.append(time.monotonic() - sent)
    member.stop()
    # A pull that nobody wakes takes that long each time but the first, which was on its way; a busy machine does not.
    assert sorted(took_s)[1] < WAKE_S
    assert seen(received(member)) == sorted(Series(topic, 10).expected())


@pytest.mark.parametrize("start", ["last", "timestamp"])
@pytest.mark.parametrize("name", ["java4", "java5", "go", "node"])
def test_a_new_group_on_a_young_topic_starts_at_its_beginning_whatever_it_asks_for(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str, start: str
) -> None:
    series = Series(topic, 12)
    java.produce(cluster.address, series)
    timestamp = {"timestamp": "20380101000000"} if start == "timestamp" else {}
    messages = clients(name).consume(cluster.address, topic, group, series.count, **{"from": start}, **timestamp)
    assert seen(messages) == sorted(series.expected())


@pytest.mark.parametrize("name", ["java4", "java5", "go", "node"])
def test_broadcasting_gives_every_member_every_message(
    cluster: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str
) -> None:
    series = Series(topic, 24)
    java.produce(cluster.address, series)
    members = [
        clients(name).start_consuming(cluster.address, topic, group, model="broadcasting", expect=series.count)
        for _ in range(2)
    ]
    for member in members:
        member.wait(PATIENCE_S)
        assert seen(received(member)) == sorted(series.expected())


@pytest.mark.parametrize("system", wanted_systems(), ids=lambda system: system.value)
@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
def test_a_group_continues_after_the_broker_comes_back(
    deploy: Callable[..., Deployment], clients: GetClient, java: Client, system: System, polite: bool
) -> None:
    deployment = deploy(system, autoCreateTopicEnable="true")
    topic, names = "Restarted", ["java4", "go", "node", "cpp"]
    first, second = Series(topic, 20, body="first"), Series(topic, 20, body="second")
    java.create_topic(deployment.address, deployment.broker.address, topic)
    java.produce(deployment.address, first)
    for name in names:
        clients(name).consume(deployment.address, topic, f"group-{name}", first.count)

    def persisted() -> bool:
        return all(
            sum(position for _, position in java.progress(deployment.address, f"group-{name}", topic)) == first.count
            for name in names
        )

    wait_for(persisted, "all groups' offsets have reached the broker", PATIENCE_S)
    if polite:
        deployment.broker.stop()
    else:
        offsets = deployment.broker.directory / "store" / "config" / "consumerOffset.json"
        wait_for(
            lambda: offsets.exists() and all(f"{topic}@group-{name}" in offsets.read_text() for name in names),
            "the broker has saved the offsets",
            PATIENCE_S,
        )
        deployment.broker.kill()
    deployment.start_again(system)
    java.produce(deployment.address, second)
    for name in names:
        messages = clients(name).consume(deployment.address, topic, f"group-{name}", second.count, linger_ms=300)
        assert seen(messages) == sorted(second.expected()), name
    counts = Counter(message["bodySha256"] for message in java.read_topic(deployment.address, topic))
    assert counts == Counter(message.body_sha256 for message in first.expected() + second.expected())
