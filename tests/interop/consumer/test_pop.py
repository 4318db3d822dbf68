"""Java's consumers of 5.5.0, at Apache 5.5.0 and at ours, the same: the broker's rebalance and pops, lite pulls."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from tests.helpers.waiting import wait_for
from tests.interop import builds
from tests.interop.clients import JAVA55, PATIENCE_S, Client, Series, seen
from tests.interop.commands import Running
from tests.interop.conftest import _deploy, unavailable
from tests.interop.systems import Deployment, System

from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode

pytestmark = pytest.mark.interop

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def java55(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    try:
        client = Client(JAVA55, tmp_path_factory.mktemp("client-java55"))
    except builds.ToolMissingError as problem:
        unavailable(problem)
    yield client
    client.close()


@pytest.fixture(scope="module", params=[System.COMETMQ, System.APACHE55], ids=["cometmq", "apache55"])
def popped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = _deploy(request.param, tmp_path_factory.mktemp("popped"))
    yield deployment
    deployment.close()


def has_started(member: Running) -> bool:
    return bool(member.named("started"))


def new_topic(popped: Deployment, java55: Client) -> tuple[str, str]:
    """A topic and a group that pops it."""
    number = next(_numbers)
    topic, group = f"InteropPop{number}", f"interop-pop-{number}"
    java55.create_topic(popped.address, popped.broker.address, topic)
    body = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with BlockingConnection(popped.broker.address, 10) as connection:
        answer = connection.invoke(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    assert answer.code == 0, answer
    return topic, group


def test_members_pop_everything_once(popped: Deployment, java55: Client) -> None:
    topic, group = new_topic(popped, java55)
    one = java55.start_consuming(popped.address, topic, group, mode="pop")
    two = java55.start_consuming(popped.address, topic, group, mode="pop")
    for member in (one, two):
        member.wait_until(partial(has_started, member), PATIENCE_S, "a member has started")
    series = Series(topic, 200, tags=("a", "b"), keys="k{i}")
    java55.produce(popped.address, series)
    wait_for(lambda: len(one.named("message") + two.named("message")) >= series.count, "both receive all", PATIENCE_S)
    one.stop()
    two.stop()
    assert seen(one.named("message") + two.named("message")) == sorted(series.expected())


def test_a_message_that_fails_comes_again_and_no_other(popped: Deployment, java55: Client) -> None:
    topic, group = new_topic(popped, java55)
    java55.produce(popped.address, Series(topic, 5))
    member = java55.start_consuming(popped.address, topic, group, mode="pop", fail=1, expect=10)
    member.wait(PATIENCE_S)
    messages = member.named("message")
    times = Counter((message["bodySha256"], message["reconsumeTimes"]) for message in messages)
    assert set(times.values()) == {1}
    assert Counter(reconsumed for _, reconsumed in times) == {0: 5, 1: 5}
    assert {message["topic"] for message in messages} == {topic}


@pytest.mark.parametrize("assign", [0, 1], ids=["subscribe", "assign"])
def test_a_lite_pull_consumer_reads_everything_once(popped: Deployment, java55: Client, assign: int) -> None:
    number = next(_numbers)
    series = Series(f"InteropLite{number}", 20)
    java55.create_topic(popped.address, popped.broker.address, series.topic)
    java55.produce(popped.address, series)
    group = f"interop-lite-{number}"
    messages = java55.consume(popped.address, series.topic, group, series.count, mode="litepull", assign=assign)
    assert seen(messages) == sorted(series.expected())
