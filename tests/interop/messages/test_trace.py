"""Message traces: what every client writes is read by our reader and by Apache's mqadmin, on either broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

import pytest
from tests.helpers.waiting import answered, until
from tests.interop.clients import PATIENCE_S, Client, Series
from tests.interop.conftest import GetClient, _deploy
from tests.interop.systems import BOTH, Deployment, System

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from cometmq.client.trace.reader import MessageWay, way_of
from cometmq.message.names import TRACE_TOPIC

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A system whose broker makes the trace topic, and no other by itself."""
    deployment = _deploy(request.param, tmp_path_factory.mktemp("traced"), traceTopicEnable="true")
    yield deployment
    deployment.close()


async def way(address: str, msg_id: str, *, consumptions: int) -> MessageWay:
    """The trace of a message, once it is complete."""
    async with Admin(address) as admin:

        async def whole() -> MessageWay | None:
            found = await way_of(admin, msg_id)
            ended = [call for call in found.consumptions if call.success is not None]
            return found if found.sends and len(ended) >= consumptions else None

        found = await answered(whole, timeout_s=PATIENCE_S)
        assert found is not None
        return found


@pytest.mark.parametrize("traced", BOTH, indirect=True, ids=lambda system: system.value)
def test_the_trace_topic_is_there_before_the_first_trace(traced: Deployment, java: Client) -> None:
    (route,) = java.admin(traced.address, "route", topic=TRACE_TOPIC)
    (queues,) = route["value"]["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (1, 1, 6)


@pytest.mark.parametrize("traced", [System.COMETMQ], indirect=True, ids=lambda system: system.value)
@pytest.mark.parametrize("name", ["java4", "java4-binary", "java5", "go"])
async def test_traces_of_real_clients_are_read(name: str, traced: Deployment, clients: GetClient, java: Client) -> None:
    # The push consumer of 5.3.3 writes no traces at brokers of 4.9, Apache's own included.
    calls = 0 if name == "java5" else 1
    client, address, topic, group = clients(name), traced.address, f"Traced-{name}", f"traced-{name}"
    await asyncio.to_thread(java.create_topic, address, traced.broker.address, topic)
    series = Series(topic, 3, tags=("t",), keys="k{i}")
    producing = client.start_producing(address, series, trace=1)
    await asyncio.to_thread(producing.wait_until, lambda: len(producing.named("sent")) == 3, PATIENCE_S, "3 were sent")
    consuming = client.start_consuming(address, topic, group, trace=1)
    for event in producing.named("sent"):
        found = await way(address, event["msgId"], consumptions=calls)
        ((pub, host),) = found.sends
        assert (pub.topic, pub.group, pub.tags) == (topic, "interop-producer", "t")
        assert pub.keys is not None
        assert pub.keys.strip() == f"k{event['index']}"
        assert pub.success
        assert pub.store_host == traced.broker.address
        assert host
        if not calls:
            continue
        (call,) = found.consumptions
        assert (call.group, call.success, call.retry_times, call.context_code) == (group, True, 0, 0)
        printed = await asyncio.to_thread(java.mqadmin, address, "queryMsgTraceById", "-i", event["msgId"])
        assert re.search(r"Pub +interop-producer", printed)
        assert re.search(rf"Sub +{group} ", printed)
    for running in (producing, consuming):
        await asyncio.to_thread(running.stop)


@pytest.mark.parametrize("traced", BOTH, indirect=True, ids=lambda system: system.value)
async def test_our_traces_are_read_by_mqadmin(traced: Deployment, java: Client) -> None:
    address = traced.address
    await asyncio.to_thread(java.create_topic, address, traced.broker.address, "Ours")
    seen: list[MessageExt] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(messages)

    config = PushConfig(enable_msg_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("readers", listener, address, config=config)
    await consumer.subscribe("Ours")
    async with Producer("writers", address, config=ProducerConfig(enable_msg_trace=True)) as producer:
        one = await producer.send(Message("Ours", b"one", tags="t", keys=("k1", "k2")))
        batch = await producer.send_batch([Message("Ours", b"b1"), Message("Ours", b"b2")])
        async with consumer:
            await until(lambda: len(seen) >= 3, timeout_s=PATIENCE_S)
    for result in (one, *batch):
        found = await way(address, result.msg_id, consumptions=1)
        assert len(found.sends) == len(found.consumptions) == 1
        printed = await asyncio.to_thread(java.mqadmin, address, "queryMsgTraceById", "-i", result.msg_id)
        assert re.search(r"Pub +writers .* true|Pub +writers .*success", printed), printed
        assert re.search(r"Sub +readers .*", printed), printed
