"""One store, two systems in turn: each opens what the other wrote, serves every message the same, appends to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.interop.clients import PATIENCE_S, Client, Series, queue_positions, seen
from tests.interop.commands import Event
from tests.interop.store.stored import contents
from tests.interop.systems import BOTH, Deployment, System

from cometmq.client.sync import SyncPullConsumer

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

GROUP = "swap-group"
# Small files, so that a few hundred messages roll over every kind of file.
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(128 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 64),
    "maxHashSlotNum": "100",
    "maxIndexNum": "300",
    "autoCreateTopicEnable": "false",
}
UNICODE = {"colour": "grün", "名前": "注文 №42"}


def rounds(number: int) -> list[tuple[Series, str]]:
    """The messages of one turn: every kind, over several topics."""
    first = number * 1000
    return [
        (Series("SwapPlain", 120, first, f"plain{number}", tags=("a", "b", "c"), keys="k{i} all"), "sync"),
        (Series("SwapPlain", 60, first + 500, f"batch{number}", keys="batch{i}"), "batch"),
        (Series("SwapRich", 40, first, f"rich{number}", 700, ("x",), "r{i}", UNICODE), "async"),
        (Series("SwapBig", 6, first, f"big{number}", 20_000, keys="big{i}"), "selector"),
        (Series("SwapBig", 2, first + 500, f"random{number}", 30_000, keys="raw{i}"), "sync"),
    ]


TOPICS = ("SwapPlain", "SwapRich", "SwapBig")
LOAD_TOPIC = "SwapLoad"


def send(java: Client, deployment: Deployment, number: int) -> list[Series]:
    """Send one turn's messages."""
    plan = rounds(number)
    for series, mode in plan:
        uncompressed = {"compress_over": 10_000_000} if series.body.startswith("random") else {}
        java.produce(deployment.address, series, mode, **uncompressed)
    return [series for series, _ in plan]


def begin_group(deployment: Deployment, topic: str) -> None:
    """One commit before all others: Apache's broker can lose one of a group's first ones that meet."""
    with SyncPullConsumer(GROUP, deployment.address) as consumer:
        consumer.commit(consumer.queues(topic)[0], 0)


def check(java: Client, deployment: Deployment, sent: list[Series]) -> None:
    """Everything sent so far is there, once, and is found by key, id and time."""
    for topic in TOPICS:
        expected = [message for series in sent if series.topic == topic for message in series.expected()]
        messages = java.read_topic(deployment.address, topic, len(expected))
        assert seen(messages, UNICODE) == sorted(expected)
        for queue in {message["queueId"] for message in messages}:
            offsets = [message["queueOffset"] for message in messages if message["queueId"] == queue]
            assert offsets == list(range(len(offsets)))
    for series in sent:
        for index in (series.first, series.first + series.count - 1):
            wanted = series.expected_at(index).body_sha256
            key = series.keys.split()[0].replace("{i}", str(index))
            found, *again = java.indexed(deployment.address, series.topic, key)
            assert found["bodySha256"] == wanted
            # Apache's recovery after a crash enters messages into the index that are in it already.
            assert {entry["commitLogOffset"] for entry in again} <= {found["commitLogOffset"]}
            (viewed,) = java.admin(deployment.address, "view", topic=series.topic, id=found["offsetMsgId"])
            assert viewed["bodySha256"] == wanted


def hand_over(java: Client, deployment: Deployment, system: System, polite: bool) -> None:
    """Stop the broker, or kill it under load, and open its store by a broker of the other system."""
    if polite:
        deployment.broker.stop()
        deployment.start_again(system)
        return
    acknowledged = kill_under_load(java, deployment)
    deployment.start_again(system)
    stored = java.read_topic(deployment.address, LOAD_TOPIC, len(acknowledged))
    places = {(message["msgId"], message["queueId"], message["queueOffset"]) for message in stored}
    assert {(event["msgId"], event["queueId"], event["queueOffset"]) for event in acknowledged} <= places
    assert all(offsets == list(range(len(offsets))) for offsets in queue_positions(stored).values())


def kill_under_load(java: Client, deployment: Deployment) -> list[Event]:
    """Kill the broker while a producer is busy; the sends that were acknowledged until then."""
    sending = java.start_producing(deployment.address, Series(LOAD_TOPIC, 20_000, body="load", keys="load{i}"))
    sending.wait_until(lambda: len(sending.named("sent")) >= 300, PATIENCE_S, "the producer is busy")
    deployment.broker.kill()
    sending.wait_until(lambda: bool(sending.named("error")), PATIENCE_S, "the producer gives up")
    return sending.named("sent")


@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", BOTH, ids=lambda system: f"{system.value}-first")
def test_a_store_goes_from_one_system_to_the_other_and_back(
    deploy: Callable[..., Deployment], java: Client, first: System, polite: bool
) -> None:
    second = System.COMETMQ if first is System.APACHE else System.APACHE
    deployment = deploy(first, namesrv=System.APACHE, **SMALL_FILES)
    for topic in (*TOPICS, LOAD_TOPIC):
        java.create_topic(deployment.address, deployment.broker.address, topic)
    sent = send(java, deployment, 0)
    check(java, deployment, sent)
    begin_group(deployment, "SwapRich")
    java.consume(deployment.address, "SwapRich", GROUP, 40)
    truth = contents(java, deployment.address, TOPICS)
    topics = topic_table(java, deployment)

    hand_over(java, deployment, second, polite)
    assert contents(java, deployment.address, TOPICS) == truth
    assert topic_table(java, deployment) == topics
    sent += send(java, deployment, 1)
    check(java, deployment, sent)
    if polite:
        received = java.consume(deployment.address, "SwapRich", GROUP, 40)
        assert seen(received, UNICODE) == sorted(sent[-3].expected())
    longer = contents(java, deployment.address, TOPICS)
    for topic in TOPICS:
        assert [message for message in longer[topic] if message in truth[topic]] == truth[topic]

    hand_over(java, deployment, first, polite)
    assert contents(java, deployment.address, TOPICS) == longer
    sent += send(java, deployment, 2)
    check(java, deployment, sent)


def topic_table(java: Client, deployment: Deployment) -> dict[str, object]:
    """Queues and permissions of the topics, as the nameserver heard them from the broker."""
    table = {}
    for topic in TOPICS:
        (route,) = java.admin(deployment.address, "route", topic=topic)
        table[topic] = route["value"]["queueDatas"]
    return table


def test_a_store_with_extended_units_goes_to_ours_and_back(deploy: Callable[..., Deployment], java: Client) -> None:
    """``enableConsumeQueueExt``: tags codes are addresses in Apache's queues, and codes after ours had the store."""
    extended = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true", "enablePropertyFilter": "true"}
    deployment = deploy(System.APACHE, namesrv=System.APACHE, **extended, **SMALL_FILES)
    topic = "SwapExtended"
    java.create_topic(deployment.address, deployment.broker.address, topic)
    for number, system in enumerate((System.APACHE, System.COMETMQ, System.APACHE)):
        if number:
            deployment.broker.stop()
            deployment.start_again(system)
        java.produce(deployment.address, Series(topic, 30, number * 100, tags=("a", "b", "c"), keys="k{i}"), "sync")
        for selector in ({"tag": "b"}, {"sql": "TAGS = 'b'"}):
            group = f"extended-{number}-{'-'.join(selector)}"
            got = java.consume(deployment.address, topic, group, 10 * (number + 1), **selector, **{"from": "first"})
            assert {message["tags"] for message in got} == {"b"}
            assert len({message["msgId"] for message in got}) == 10 * (number + 1)
