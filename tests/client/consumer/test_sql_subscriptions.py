"""Our consumers subscribe by SQL92, at CometMQ and at Apache RocketMQ."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from tests.client.conftest import SYSTEMS, deploy, visible
from tests.helpers.examples import run
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PullStatus,
    PushConfig,
    PushConsumer,
)
from cometmq.client.errors import BrokerError
from cometmq.remoting.codes import ResponseCode

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=SYSTEMS)
def filtering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A system whose broker filters by properties."""
    deployment = deploy(request.param, tmp_path_factory.mktemp("sql"), enablePropertyFilter="true")
    yield deployment
    deployment.close()


@pytest.fixture
async def orders(filtering: Deployment) -> AsyncIterator[str]:
    """A topic with 40 orders, 10 from each region, with amounts from 0 to 39."""
    name = f"Orders{next(_numbers)}"
    async with Admin(filtering.address) as admin, Producer("p", filtering.address) as producer:
        await admin.create_topic(name, queues=4)
        await send(producer, name, range(40))
        await visible(filtering.address, name, 40)
        yield name


async def send(producer: Producer, topic: str, numbers: Sequence[int]) -> None:
    await producer.send_many(
        [
            Message(topic, b"%d" % number, properties={"region": "neuw"[number % 4], "amount": str(number)})
            for number in numbers
        ]
    )


class Log:
    def __init__(self) -> None:
        self.seen: list[int] = []

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        self.seen += [int(message.body) for message in messages]


@pytest.mark.parametrize("model", list(MessageModel))
async def test_a_push_consumer_gets_what_it_wants_and_what_arrives_later(
    filtering: Deployment, orders: str, tmp_path: Path, model: MessageModel
) -> None:
    log = Log()
    config = PushConfig(consume_from_where=FIRST, message_model=model, offset_store_dir=tmp_path)
    consumer = PushConsumer(f"{orders}-push", log.listen, filtering.address, config=config)
    await consumer.subscribe(orders, "region = 'n' AND amount BETWEEN 8 AND 24", expression_type="SQL92")
    async with consumer, Producer("p", filtering.address) as producer:
        await until(lambda: len(log.seen) >= 5)
        await send(producer, orders, [100, 12, 13])
        await until(lambda: len(log.seen) >= 6)
    assert sorted(log.seen) == [8, 12, 12, 16, 20, 24]


async def test_a_lite_pull_consumer_gets_what_it_wants(filtering: Deployment, orders: str) -> None:
    config = LitePullConfig(consume_from_where=FIRST)
    async with LitePullConsumer(f"{orders}-lite", filtering.address, config=config) as consumer:
        await consumer.subscribe(orders, "amount < 3 OR region = 'w' AND amount >= 35.0", expression_type="SQL92")
        seen: list[int] = []
        while len(seen) < 5:
            seen += [int(message.body) for message in await consumer.poll(60)]
    assert sorted(seen) == [0, 1, 2, 35, 39]


async def test_assigned_queues_are_filtered_too(filtering: Deployment, orders: str) -> None:
    config = LitePullConfig(consume_from_where=FIRST)
    async with LitePullConsumer(f"{orders}-hand", filtering.address, config=config) as consumer:
        await consumer.assign(await consumer.queues(orders), "amount IN ('7', '9')", expression_type="SQL92")
        seen: list[int] = []
        while len(seen) < 2:
            seen += [int(message.body) for message in await consumer.poll(60)]
        assert sorted(seen) == [7, 9]
        with pytest.raises(BrokerError):
            await consumer.assign(await consumer.queues(orders), "amount >", expression_type="SQL92")


async def test_single_pulls_by_expression(filtering: Deployment, orders: str) -> None:
    async with PullConsumer(f"{orders}-pull", filtering.address) as consumer:
        seen: list[int] = []
        for queue in await consumer.queues(orders):
            pulled = await consumer.pull(queue, 0, 32, expression="amount > 36", expression_type="SQL92")
            assert pulled.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
            assert pulled.next_offset == pulled.max_offset
            seen += [int(message.body) for message in pulled.messages]
    assert sorted(seen) == [37, 38, 39]


async def test_a_malformed_expression_is_told_before_anything_is_read(filtering: Deployment, orders: str) -> None:
    log = Log()
    consumer = PushConsumer(f"{orders}-bad", log.listen, filtering.address)
    await consumer.subscribe(orders, "amount > > 3", expression_type="SQL92")
    with pytest.raises(BrokerError) as raised:
        await consumer.start()
    assert raised.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert f"subscribing to {orders} by SQL92" in str(raised.value)
    async with LitePullConsumer(f"{orders}-bad", filtering.address) as lite:
        with pytest.raises(BrokerError):
            await lite.subscribe(orders, "amount > > 3", expression_type="SQL92")
        await lite.subscribe(orders, "amount > 3", expression_type="SQL92")


async def test_a_topic_that_is_added_with_a_malformed_expression_is_not_read(
    filtering: Deployment, orders: str
) -> None:
    log = Log()
    consumer = PushConsumer(f"{orders}-add", log.listen, filtering.address, config=PushConfig(consume_from_where=FIRST))
    await consumer.subscribe(orders, "amount = 1", expression_type="SQL92")
    other = f"{orders}Other"
    async with Admin(filtering.address) as admin, Producer("p", filtering.address) as producer:
        await admin.create_topic(other, queues=1)
        await send(producer, other, [5, 6])
        async with consumer:
            with pytest.raises(BrokerError, match=f"subscribing to {other} by SQL92"):
                await consumer.subscribe(other, "amount > > 3", expression_type="SQL92")
            assert {queue.topic for queue in consumer.assignment} == {orders}
            await consumer.subscribe(other, "amount = 6", expression_type="SQL92")
            await until(lambda: len(log.seen) >= 2)
    assert sorted(log.seen) == [1, 6]


async def test_without_the_filter_the_broker_says_so(server: Deployment, topic: str, group: str) -> None:
    consumer = PushConsumer(group, Log().listen, server.address)
    await consumer.subscribe(topic, "amount > 3", expression_type="SQL92")
    with pytest.raises(BrokerError) as raised:
        await consumer.start()
    assert raised.value.remark == "The broker does not support consumer to filter message by SQL92"
    assert "enablePropertyFilter=true" in str(raised.value)


async def test_an_expression_is_needed() -> None:
    consumer = PushConsumer("g", Log().listen, "127.0.0.1:1")
    with pytest.raises(ValueError, match="requires an expression"):
        await consumer.subscribe("T", " ", expression_type="SQL92")
    with pytest.raises(ValueError, match="TAG or SQL92"):
        await consumer.subscribe("T", "x", expression_type="GROOVY")


def test_the_example_runs_as_written(filtering: Deployment, tmp_path: Path) -> None:
    output = run("sql_filter.py", tmp_path, filtering.address)
    assert "10 of 30 orders" in output
    assert "at character 10" in output or "line 1, column 10" in output
