"""A member warns of other members of its group that subscribe differently."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.helpers.waiting import real_time, until
from tests.interop.systems import Deployment

from cometmq.client import LitePullConsumer, MessageExt, PushConfig, PushConsumer
from cometmq.client.consumer.agreement import difference
from cometmq.client.consumer.subscription import subscription
from cometmq.testing import Cluster, VirtualClock


async def nothing(messages: Sequence[MessageExt]) -> None:
    """Take everything."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name.endswith("agreement")]
    return [text.partition(": ")[2].partition(" (")[0] for text in texts]


async def member(cluster: Cluster, *topics: str, expression: str = "*") -> PushConsumer:
    consumer = PushConsumer("workers", nothing, instance=cluster.client_instance())
    for topic in topics:
        await consumer.subscribe(topic, expression)
    return consumer


async def test_an_older_expression_is_warned_of_once(
    cluster: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = await member(cluster, "orders", expression="red")
    clock.advance(1)
    async with first, await member(cluster, "orders", expression="blue"):
        await clock.run_for(300)
    assert warnings(caplog) == ["topic orders: this member's subscription is TAG red, another's is TAG blue"]
    assert "workers subscribe differently" in caplog.text
    assert "cometmq group describe" in caplog.text


async def test_other_topics_are_warned_of(
    cluster: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("bills")
    async with await member(cluster, "orders"), await member(cluster, "orders", "bills"):
        await clock.run_for(300)
    told = set(warnings(caplog))
    assert told
    assert told <= {
        "topic bills: this member's subscription is none, another's is TAG *",
        "topic bills: this member's subscription is TAG *, another's is none",
    }


async def test_members_that_agree_and_one_that_changes_alone_are_left_in_peace(
    cluster: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with await member(cluster, "orders"), await member(cluster, "orders"):
        await clock.run_for(100)
    async with await member(cluster, "orders") as alone:
        await clock.run_for(25)
        await alone.subscribe("orders", "red")
        await clock.run_for(100)
    async with LitePullConsumer("pollers", instance=cluster.client_instance()) as lite:
        await lite.subscribe("orders")
        await clock.run_for(100)
    assert not warnings(caplog)


async def test_a_member_is_warned_at_any_broker(
    server: Deployment, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = PushConfig(rebalance_interval_s=0.2)
    first, second = (PushConsumer(group, nothing, server.address, config=config) for _ in range(2))
    await first.subscribe(topic, "red")
    await real_time(0.01)  # the newer subscription counts, and brokers compare milliseconds
    await second.subscribe(topic, "blue")
    async with first, second:
        await until(lambda: warnings(caplog))
    assert f"topic {topic}: this member's subscription is TAG red, another's is TAG blue" in warnings(caplog)


def test_the_difference_names_a_topic_and_counts_the_others() -> None:
    own = {topic: subscription(topic, "*", "TAG", 1) for topic in "abc"}
    known = {topic: subscription(topic, "x", "TAG", 1) for topic in "bcd"}
    assert difference(own, known) == (
        "topic a: this member's subscription is TAG *, another's is none, and 3 more topics"
    )
    assert difference(own, own | {"%RETRY%g": subscription("%RETRY%g", "*", "TAG", 1)}) == ""
