"""The progress of all groups of a broker is told in sums, and is found also at brokers that do not know such sums."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Self

import pytest
from tests.helpers.old_broker import without

import cometmq.broker.admin.offsets
from cometmq.client import Message, PushConsumer
from cometmq.client.admin import Admin, activity, group_progress
from cometmq.client.admin.activity import ActivityWatch
from cometmq.client.admin.cluster_health import examine_cluster
from cometmq.client.admin.group_progress import ProgressWatch, all_groups
from cometmq.client.admin.group_summary import summaries_of
from cometmq.remoting.codes import RequestCode
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
def large(behind: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker knows no sums, and refuses to tell of all groups at once."""
    without(behind.broker(0), RequestCode.GET_PROGRESS_SUMS)
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 1_000)


async def lags_of(cluster: Cluster, *, everything: bool) -> dict[str, int]:
    async with Admin(cluster.namesrv_address) as admin:
        watch = ActivityWatch(admin, with_clients=False)
        rows = (await watch.poll(everything=everything)).groups
        return {row.group: row.lag for row in rows if row.group.startswith("g")}


async def test_sums_are_those_of_all_groups_at_once_and_one_by_one(
    behind: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await lags_of(behind, everything=True)
    assert told == {f"g{number:02d}": 2 * number for number in range(GROUPS)}
    without(behind.broker(0), RequestCode.GET_PROGRESS_SUMS)
    assert await lags_of(behind, everything=True) == told
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 1_000)
    assert await lags_of(behind, everything=True) == told


async def test_lines_of_groups_are_the_same_from_a_broker_that_knows_no_sums(behind: Cluster) -> None:
    async with Admin(behind.namesrv_address) as admin:
        names = ["g03", "g07", "of nobody"]
        told = await summaries_of(admin, names)
        assert [(one.topics, one.lag) for one in told.values()] == [(["T", "U"], 6), (["T", "U"], 14), ([], 0)]
        without(behind.broker(0), RequestCode.GET_PROGRESS_SUMS)
        assert await summaries_of(admin, names) == told


@contextmanager
def counted(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes of the requests that an administration sends meanwhile."""
    codes: list[int] = []
    call = admin._call

    async def noted(address: str, code: int, *args: object, **more: object) -> bytes:
        codes.append(code)
        return await call(address, code, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(admin, "_call", noted)
        yield codes


async def test_a_look_sends_no_request_for_a_topic_or_a_group(behind: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        await behind.create_topic(f"idle-{number}", 1)
    async with Admin(behind.namesrv_address) as admin:
        watch = ActivityWatch(admin, with_clients=False)
        with counted(admin, monkeypatch) as codes:
            rows = {row.topic: row for row in (await watch.poll()).topics}
        assert len(codes) <= 5
        assert codes.count(RequestCode.GET_PROGRESS_SUMS) == 1
    assert (rows["T"].messages, rows["T"].groups, rows["T"].lag) == (GROUPS, GROUPS, GROUPS - 1)
    assert rows["idle-29"].messages == 0


async def test_a_page_of_groups_asks_for_the_progress_of_its_groups_alone(
    behind: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(behind.namesrv_address) as admin:
        with counted(admin, monkeypatch) as codes:
            found = await summaries_of(admin, ["g01", "g02", "g03"])
        assert codes.count(RequestCode.GET_CONSUMER_CONNECTION_LIST) == 0, "they have no members"
        assert codes.count(RequestCode.GET_PROGRESS_SUMS) == 1
        assert codes.count(RequestCode.GET_CONSUME_STATS) == 0
    assert [one.lag for one in found.values()] == [2, 4, 6]


class Steps:
    """Counts the steps of a long check."""

    def __init__(self, _title: str, total: int) -> None:
        self.total, self.done = total, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self, steps: int) -> None:
        self.done += steps


async def test_the_doctor_asks_for_the_members_of_groups_that_have_several(
    behind: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[Steps] = []

    def watch(title: str, total: int) -> Steps:
        checks.append(Steps(title, total))
        return checks[-1]

    async def asked() -> int:
        with counted(admin, monkeypatch) as codes:
            findings = {one.check: one async for one in examine_cluster(admin, behind.namesrv_address.split(), watch)}
        assert findings["subscriptions"].found == f"{GROUPS + others} groups with consistent subscriptions"
        assert checks[-1].done == checks[-1].total
        return codes.count(RequestCode.GET_CONSUMER_CONNECTION_LIST)

    others = 0
    async with Admin(behind.namesrv_address) as admin:
        assert await asked() == 0
        others = 1
        async with AsyncExitStack() as stack:
            for _ in range(2):
                consumer = PushConsumer("shared", lambda _: None, behind.namesrv_address)
                await consumer.subscribe("T")
                await stack.enter_async_context(consumer)
            assert await asked() == 1
            (summary,) = (await summaries_of(admin, ["shared"])).values()
            assert (summary.members, summary.model) == (2, "clustering")
            without(behind.broker(0), RequestCode.GET_PROGRESS_SUMS)
            assert await asked() == GROUPS + 1


@pytest.mark.usefixtures("large")
async def test_each_look_asks_for_some_groups_and_keeps_those_of_before(
    behind: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_progress, "SECONDS_PER_POLL", 0.0)
    async with Admin(behind.namesrv_address) as admin:
        watch = ProgressWatch(admin)
        address = behind.broker(0).address
        seen = [len(await watch.poll(address, everything=False)) for _ in range(5)]
        assert seen[:2] == [8, 16]
        assert seen[3] == len(await admin.groups(address))
        behind.broker(0).groups.delete("g05")
        assert "g05" not in await watch.poll(address, everything=False)


@pytest.mark.usefixtures("large")
async def test_a_look_of_top_tells_of_topics_that_are_consumed_at_a_large_broker(behind: Cluster) -> None:
    async with Admin(behind.namesrv_address) as admin:
        watch = ActivityWatch(admin)
        await watch.poll()
        await behind.send(Message("T", b"x"))
        snapshot = await watch.poll()
        (row,) = (row for row in snapshot.topics if row.topic == "T")
        assert (row.messages, row.groups, row.lag) == (GROUPS + 1, GROUPS, GROUPS)
        assert not any(broker.trouble for broker in snapshot.brokers)


@pytest.mark.usefixtures("large")
async def test_a_drain_of_a_large_broker_finds_all_groups(behind: Cluster) -> None:
    async with Admin(behind.namesrv_address) as admin:
        found = [group async for group, _ in all_groups(admin, behind.broker(0).address)]
    assert {f"g{number:02d}" for number in range(GROUPS)} <= set(found)


async def test_topics_that_a_look_has_no_time_for_come_first_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SECONDS_PER_POLL", 0.0)
    monkeypatch.setattr(activity, "ASKED_AT_ONCE", 4)
    async with Cluster() as cluster, Admin(cluster.namesrv_address) as admin:
        without(cluster.broker(0), RequestCode.GET_PROGRESS_SUMS)
        for number in range(10):
            await cluster.create_topic(f"idle-{number}", 1)
        monkeypatch.setattr(activity, "TOPICS_PER_POLL", 9)
        watch = ActivityWatch(admin, with_clients=False)
        known = []
        for _ in range(3):
            rows = (await watch.poll()).topics
            known.append(sum(row.messages is not None for row in rows if row.topic.startswith("idle-")))
        assert known[0] <= 4
        assert known[2] == 10
