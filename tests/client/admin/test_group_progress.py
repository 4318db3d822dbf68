"""The progress of all groups of a broker is found also where one answer has no room for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import cometmq.broker.admin.offsets
from cometmq.client import Message
from cometmq.client.admin import Admin, activity, group_progress
from cometmq.client.admin.activity import ActivityWatch
from cometmq.client.admin.group_progress import ProgressWatch, all_groups
from cometmq.testing import Cluster

GROUPS = 20


@pytest.fixture
async def behind() -> AsyncIterator[Cluster]:
    """Of twenty groups, the one with number N is N messages behind in each of two topics."""
    async with Cluster() as cluster:
        broker = cluster.broker(0)
        for topic in ("T", "U"):
            await cluster.create_topic(topic, 1)
            for _ in range(GROUPS):
                await cluster.send(Message(topic, b"x"))
            for number in range(GROUPS):
                assert broker.groups.find(f"g{number:02d}") is not None
                assert broker.offsets.commit(f"g{number:02d}", topic, 0, GROUPS - number)
        yield cluster


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refuses to tell of all groups at once."""
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 1_000)


async def lags_of(cluster: Cluster, *, everything: bool) -> dict[str, int]:
    async with Admin(cluster.namesrv_address) as admin:
        watch = ActivityWatch(admin, with_clients=False)
        rows = (await watch.look(everything=everything)).groups
        return {row.group: row.lag for row in rows if row.group.startswith("g")}


async def test_one_by_one_is_the_same_as_at_once(behind: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = await lags_of(behind, everything=True)
    assert at_once == {f"g{number:02d}": 2 * number for number in range(GROUPS)}
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 1_000)
    assert await lags_of(behind, everything=True) == at_once


@pytest.mark.usefixtures("large")
async def test_each_look_asks_for_some_groups_and_keeps_those_of_before(
    behind: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_progress, "SECONDS_PER_LOOK", 0.0)
    async with Admin(behind.namesrv_address) as admin:
        watch = ProgressWatch(admin)
        address = behind.broker(0).address
        seen = [len(await watch.look(address, everything=False)) for _ in range(5)]
        assert seen[:2] == [8, 16]
        assert seen[3] == len(await admin.groups(address))
        behind.broker(0).groups.delete("g05")
        assert "g05" not in await watch.look(address, everything=False)


@pytest.mark.usefixtures("large")
async def test_a_look_of_top_tells_of_topics_that_are_consumed_at_a_large_broker(behind: Cluster) -> None:
    async with Admin(behind.namesrv_address) as admin:
        watch = ActivityWatch(admin)
        await watch.look()
        await behind.send(Message("T", b"x"))
        snapshot = await watch.look()
        (row,) = (row for row in snapshot.topics if row.topic == "T")
        assert (row.messages, row.groups, row.lag) == (GROUPS + 1, GROUPS, GROUPS)
        assert not any(broker.trouble for broker in snapshot.brokers)


@pytest.mark.usefixtures("large")
async def test_a_drain_of_a_large_broker_finds_all_groups(behind: Cluster) -> None:
    async with Admin(behind.namesrv_address) as admin:
        found = [group async for group, _ in all_groups(admin, behind.broker(0).address)]
    assert {f"g{number:02d}" for number in range(GROUPS)} <= set(found)


async def test_topics_that_a_look_has_no_time_for_come_first_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SECONDS_PER_LOOK", 0.0)
    monkeypatch.setattr(activity, "ASKED_AT_ONCE", 4)
    async with Cluster() as cluster, Admin(cluster.namesrv_address) as admin:
        for number in range(10):
            await cluster.create_topic(f"idle-{number}", 1)
        monkeypatch.setattr(activity, "TOPICS_PER_LOOK", 9)
        watch = ActivityWatch(admin, with_clients=False)
        known = []
        for _ in range(3):
            rows = (await watch.look()).topics
            known.append(sum(row.messages is not None for row in rows if row.topic.startswith("idle-")))
        assert known[0] <= 4
        assert known[2] == 10
