"""The pages about consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from tests.helpers.consoles import Surfer
from tests.helpers.waiting import wait_for

from cometmq.client.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.sync import SyncProducer
from cometmq.message.message import Message, MessageExt
from cometmq.testing.cluster import Cluster
from cometmq.testing.sync import SyncCluster


def consumed(cluster: SyncCluster, topic: str, group: str, count: int) -> None:
    cluster.create_topic(topic, 1)
    for number in range(count):
        cluster.send(Message(topic, b"x", keys=[str(number)]))
    with cluster.inbox(topic, group=group) as inbox:
        inbox.expect(count)


def lag(cluster: SyncCluster, group: str, topic: str) -> int:
    async def ask(running: Cluster) -> int:
        async with Admin(instance=running.client_instance()) as admin:
            return (await admin.consume_progress(group, topic)).lag

    return cluster.call(ask(cluster.cluster))


def test_a_reset_says_before_how_many_messages_come_again_or_are_skipped(surfer: Surfer, cluster: SyncCluster) -> None:
    consumed(cluster, "reset-me", "resetters", 10)
    plan = surfer.post("/groups/resetters/reset", topic="reset-me", to="earliest")
    assert "0 messages are skipped, 10 are consumed again" in plan.words
    assert lag(cluster, "resetters", "reset-me") == 0, "the preview moves nothing"
    page = surfer.change("/groups/resetters/reset", topic="reset-me", to="earliest")
    assert "Group resetters is reset in topic reset-me." in page.words
    assert lag(cluster, "resetters", "reset-me") == 10
    plan = surfer.post("/groups/resetters/reset", topic="reset-me", to="latest")
    assert "10 messages are skipped, 0 are consumed again" in plan.words
    assert 'name="typed"' in plan.text, "what is skipped is lost for the group"
    surfer.change("/groups/resetters/reset", topic="reset-me", to="latest", typed="resetters")
    assert lag(cluster, "resetters", "reset-me") == 0
    assert [line["details"]["skipped"] for line in surfer.audit("group.reset", "resetters", 2)] == ["0", "10"]


def test_a_reset_without_a_place_or_of_an_unknown_group_is_refused(surfer: Surfer, cluster: SyncCluster) -> None:
    consumed(cluster, "resettable", "placeless", 1)
    assert surfer.post("/groups/placeless/reset", topic="resettable", to="time").status == 400
    page = surfer.post("/groups/nobody/reset", topic="resettable", to="earliest")
    assert "group nobody does not exist" in page.words


def test_a_clone_begins_where_its_original_is(surfer: Surfer, cluster: SyncCluster) -> None:
    consumed(cluster, "clone-me", "original", 5)
    for _ in range(3):
        cluster.send(Message("clone-me", b"more"))
    page = surfer.change("/groups/original/clone", copy="copy-of-it")
    assert "Group copy-of-it starts at the offsets of original." in page.words
    assert lag(cluster, "copy-of-it", "clone-me") == 3


def test_a_group_is_created_changed_and_deleted(surfer: Surfer) -> None:
    assert "is created" in surfer.change("/groups/create", group="new-group", retries=3, retry_queues=1).words
    assert surfer.post("/groups/create", group="new-group").status == 400
    plan = surfer.post("/groups/new-group/alter", consume="no")
    assert "consume yes no" in plan.words
    page = surfer.change("/groups/new-group/alter", consume="no")
    assert "stopped" in page.words
    assert "is deleted" in surfer.change("/groups/new-group/delete", typed="new-group").words
    assert surfer.get("/groups/new-group").status == 404


def test_members_that_contradict_each_other_are_named_and_tell_what_they_do(
    surfer: Surfer, cluster: SyncCluster
) -> None:
    cluster.create_topic("disputed", 2)
    consumers: list[PushConsumer] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        return None

    async def start(running: Cluster) -> None:
        for expression in ("*", "red"):
            consumer = PushConsumer("disputers", listen, instance=running.client_instance())
            await consumer.subscribe("disputed", expression)
            await consumer.start()
            consumers.append(consumer)

    async def stop() -> None:
        for consumer in consumers:
            await consumer.close()

    cluster.call(start(cluster.cluster))
    try:
        page = surfer.get("/groups/disputers")
        assert "The group loses messages" in page.words
        assert "Members 2" in page.words
        address = next(part for part in page.text.split('"') if part.startswith("/groups/disputers/members/"))
        member = surfer.get(address)
        assert "disputed" in member.words
        assert "Stacks" not in member.words
        assert "Stacks" in surfer.get(f"{address}?stack=yes").words
        assert "2 members are consuming" in surfer.get("/groups/disputers/reset").words
        assert surfer.confirm("/groups/disputers/delete", typed="disputers").status == 502
    finally:
        cluster.call(stop())
    assert "The group has no members now." in surfer.get("/groups/disputers", HX_Request="true").words


def test_a_group_of_many_topics_is_shown_in_pages_and_searched(surfer: Surfer, cluster: SyncCluster) -> None:
    """With 250 topics of four queues the page had 375 KB, every five seconds."""
    for number in range(120):
        cluster.create_topic(f"wide-{number:03d}", 1)

    async def commit(running: Cluster) -> None:
        broker = running.broker(0)
        assert broker.groups.find("wide-readers") is not None
        for number in range(120):
            assert broker.offsets.commit("wide-readers", f"wide-{number:03d}", 0, 0)

    cluster.call(commit(cluster.cluster))
    page = surfer.get("/groups/wide-readers")
    assert "1 to 50 of 120" in page.words
    assert page.text.count('href="/topics/wide-') == 50
    assert "Search topics" in page.words
    last = surfer.get("/groups/wide-readers?page=3")
    assert "wide-119" in last.words
    assert 'hx-get="/groups/wide-readers?page=3"' in last.text, "a refresh stays on its page"
    found = surfer.get("/groups/wide-readers?q=-11")
    assert found.text.count('href="/topics/wide-') == 10
    assert "No topic of the group has this text in its name." in surfer.get("/groups/wide-readers?q=nowhere").words


def test_a_topic_of_many_groups_shows_them_in_pages(surfer: Surfer, cluster: SyncCluster) -> None:
    """Only the first hundred were shown, without a word about the others."""
    cluster.create_topic("popular", 1)

    async def commit(running: Cluster) -> None:
        for number in range(130):
            assert running.broker(0).offsets.commit(f"reader-{number:03d}", "popular", 0, 0)

    cluster.call(commit(cluster.cluster))
    page = surfer.get("/topics/popular")
    assert "1 to 50 of 130" in page.words
    assert page.text.count('href="/groups/reader-') == 50
    assert "reader-129" in surfer.get("/topics/popular?page=3").words
    assert surfer.get("/topics/popular?q=reader-12").text.count('href="/groups/reader-') == 10


def test_producers_are_searched(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("produced", 1)
    with SyncProducer("shop-producers", cluster.namesrv_address) as producer:
        producer.send(Message("produced", b"x"))
        wait_for(lambda: "shop-producers" in surfer.get("/producers?q=SHOP").words, "the producer")
        assert "No producer has this text in its name." in surfer.get("/producers?q=no-such-producer").words
