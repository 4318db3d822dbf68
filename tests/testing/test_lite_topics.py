"""The test kit's lite topics: made, sent to, received from and expired in a line each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from cometmq.testing import Cluster, ExpectationError, LiteTopics, SyncCluster, VirtualClock


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(2, clock=clock) as cluster:
        yield cluster


async def test_messages_of_the_chosen_lite_topics_arrive_once_and_in_order(cluster: Cluster) -> None:
    sessions = await LiteTopics.create(cluster, "sessions", queues=2)
    await sessions.send("before", b"early")
    async with sessions.inbox("before", "later") as inbox:
        assert [message.body for message in await inbox.expect(1)] == [b"early"]
        await sessions.send("later", b"1", b"2", b"3")
        await sessions.send("other", b"x")
        assert [message.body for message in await inbox.expect(3)] == [b"1", b"2", b"3"]
        await inbox.expect_none(within=timedelta(minutes=5))
        await inbox.subscribe("other")
        (message,) = await inbox.expect(1)
        assert (message.body, message.lite_topic) == (b"x", "other")
        await inbox.unsubscribe("other")
        await sessions.send("other", b"y")
        await inbox.expect_none()
    assert sessions.names == ["before", "later", "other"]


async def test_idle_lite_topics_expire_by_moving_the_clock(cluster: Cluster) -> None:
    sessions = await LiteTopics.create(cluster, "sessions", expiration=timedelta(minutes=30))
    await sessions.send("read", b"1")
    await sessions.send("unread", b"2")
    await sessions.send("subscribed", b"3")
    async with sessions.inbox("read") as inbox:
        await inbox.expect(1)
    async with sessions.inbox("subscribed") as inbox:
        await inbox.expect(1)
        assert await sessions.expire() == ["read"]
        assert sessions.names == ["subscribed", "unread"]
    assert await sessions.expire() == ["subscribed"]


async def test_without_an_acknowledgement_messages_come_again_and_then_die(cluster: Cluster) -> None:
    sessions = await LiteTopics.create(cluster, "sessions", group="careless")
    await sessions.send("s", b"1")
    async with sessions.inbox("s", acknowledge=False) as inbox:
        first, second = await inbox.expect(2, within=timedelta(hours=1))
        assert (first.body, second.body) == (b"1", b"1")
    async with cluster.inbox("%DLQ%careless") as dead, sessions.inbox("s", acknowledge=False):
        (letter,) = await dead.expect(1, within=timedelta(hours=12))
        assert letter.body == b"1"


async def test_a_member_of_an_exclusive_group_is_told_what_it_lost(cluster: Cluster) -> None:
    sessions = await LiteTopics.create(cluster, "sessions", exclusive=True)
    async with sessions.inbox("s") as first, sessions.inbox("s") as second:
        await sessions.send("s", b"1")
        await second.expect(1)
        await first.expect_none()
        assert first.lost == ["s"]


async def test_a_failed_expectation_says_where_the_messages_are(cluster: Cluster) -> None:
    sessions = await LiteTopics.create(cluster, "sessions")
    async with sessions.inbox("sesion-1") as inbox:
        with pytest.raises(ExpectationError, match="nothing was sent to a lite topic of sessions"):
            await inbox.expect(1)
        await sessions.send("session-1", b"1", b"2")
        with pytest.raises(ExpectationError) as failed:
            await inbox.expect(2, within=10)
    text = str(failed.value)
    assert "2 messages expected from sesion-1 of sessions within 10 s, but none arrived" in text
    assert "session-1: 2 stored, 2 not consumed by the group" in text
    assert "→ the inbox does not subscribe to session-1, which have messages" in text
    async with sessions.inbox("session-1") as inbox:
        with pytest.raises(ExpectationError, match=r"(?s)but these arrived:.*b'1'.*b'2'"):
            await inbox.expect_none()


async def test_wrong_uses_are_named(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="a minute or more"):
        await LiteTopics.create(cluster, "sessions", expiration=timedelta(seconds=59))


def test_lite_topics_in_a_plain_test() -> None:
    with SyncCluster() as cluster:
        sessions = cluster.call(LiteTopics.create(cluster.cluster, "sessions"))
        cluster.call(sessions.send("s", b"x"))
        assert cluster.run(lambda _: sessions.names) == ["s"]
        with pytest.raises(TypeError, match="the real clock cannot be moved"):
            cluster.call(sessions.expire())
