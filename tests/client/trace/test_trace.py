"""Message trace: what our clients tell the trace topic, and what our reader makes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from tests.helpers.waiting import answered, real_time, until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    EndTransactionContext,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    SendResult,
)
from cometmq.client.errors import RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.trace.dispatcher import MessageTrace, TraceDispatcher
from cometmq.client.trace.reader import MessageWay, way_of
from cometmq.limits import MAX_TRACE_BODY_BYTES, MAX_TRACE_RECORDS, MAX_WAITING_TRACES
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.properties import MessageType
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, decode_trace
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TRACED = ProducerConfig(enable_msg_trace=True)


async def way(address: str, result: SendResult, *, consumptions: int = 0, topic: str = TRACE_TOPIC) -> MessageWay:
    """The way of a message once it is told.

    Apache indexes a moment after storing, and a nameserver hears of the trace topic a moment after its first message.
    """
    async with Admin(address) as admin:

        async def told() -> MessageWay | None:
            with contextlib.suppress(RouteNotFoundError):
                found = await way_of(admin, result.msg_id, topic=topic)
                done = [call for call in found.consumptions if call.success is not None]
                if found.sends and len(done) >= consumptions:
                    return found
            return None

        found = await answered(told)
        assert found is not None
        return found


async def test_a_message_is_told_from_its_producer_to_each_consumer(server: Deployment, topic: str, group: str) -> None:
    calls: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        calls.append(len(messages))
        if messages[0].body == b"bad" and messages[0].reconsume_times == 0:
            raise RuntimeError("told to")

    config = PushConfig(enable_msg_trace=True, consume_from_where=FIRST)
    consumers = [PushConsumer(f"{group}-{name}", listener, server.address, config=config) for name in "ab"]
    async with Producer("traced", server.address, config=TRACED) as producer:
        good = await producer.send(Message(topic, b"good", tags="A", keys=("k1", "k2")))
        bad = await producer.send(Message(topic, b"bad"))
    for consumer in consumers:
        await consumer.subscribe(topic)
    async with consumers[0], consumers[1]:
        await until(lambda: len(calls) >= 4)
    found_way = await way(server.address, good, consumptions=2)
    ((sent, host),) = found_way.sends
    assert (sent.group, sent.topic, sent.tags, sent.keys) == ("traced", topic, "A", "k1 k2")
    assert (sent.region, sent.store_host, sent.body_bytes) == ("DefaultRegion", server.broker.address, 4)
    assert (sent.offset_msg_id, sent.success, sent.msg_type) == (good.offset_msg_id, True, MessageType.NORMAL)
    assert host == "127.0.0.1"
    assert {call.group for call in found_way.consumptions} == {f"{group}-a", f"{group}-b"}
    assert {(call.success, call.context_code, call.retry_times) for call in found_way.consumptions} == {(True, 0, 0)}
    assert all(call.begun_at_ms is not None and call.begun_at_ms >= sent.time_ms for call in found_way.consumptions)
    failed = await way(server.address, bad, consumptions=2)
    assert {(call.success, call.context_code) for call in failed.consumptions} >= {(False, 2)}
    assert failed.sends[0][0].keys is None


async def test_a_lite_pull_consumer_tells_how_long_messages_took_until_the_next_poll(
    server: Deployment, topic: str, group: str
) -> None:
    config = LitePullConfig(enable_msg_trace=True, consume_from_where=FIRST)

    async def poll_and_fail() -> None:
        async with LitePullConsumer(group, server.address, config=config) as consumer:
            await consumer.subscribe(topic)
            assert [message.body for message in await consumer.poll(60)] == [b"broken"]
            raise RuntimeError("told to")

    async with Producer("traced", server.address, config=TRACED) as producer:
        first = await producer.send(Message(topic, b"first"))
        async with LitePullConsumer(group, server.address, config=config) as consumer:
            await consumer.subscribe(topic)
            assert [message.body for message in await consumer.poll(60)] == [b"first"]
            await real_time(0.05)  # the time that is told below
            last = await producer.send(Message(topic, b"last"))
            assert [message.body for message in await consumer.poll(60)] == [b"last"]
        broken = await producer.send(Message(topic, b"broken"))
        with pytest.raises(RuntimeError):
            await poll_and_fail()
    (call,) = (await way(server.address, first, consumptions=1)).consumptions
    assert (call.group, call.success, call.context_code) == (group, True, 0)
    assert call.cost_ms is not None
    assert call.cost_ms >= 50
    (call,) = (await way(server.address, last, consumptions=1)).consumptions
    assert call.success
    (call,) = (await way(server.address, broken, consumptions=1)).consumptions
    assert (call.success, call.context_code) == (False, 2)


async def test_every_way_to_send_is_told(server: Deployment, topic: str) -> None:
    async with Producer("traced", server.address, config=TRACED) as producer:
        delayed = await producer.send(Message(topic, b"later", delay_level=1))
        many = await producer.send_many([Message(topic, b"%d" % number) for number in range(250)])
        batch = await producer.send_batch([Message(topic, b"b1"), Message(topic, b"b22")])
        await producer.send_oneway(Message(topic, b"not told"))
    ((found_way, _),) = (await way(server.address, delayed)).sends
    assert found_way.msg_type == MessageType.DELAY
    for result in (*many[::50], *batch):
        ((found_way, _),) = (await way(server.address, result)).sends
        assert (found_way.offset_msg_id, found_way.topic) == (result.offset_msg_id, topic)
    assert producer.trace is not None
    assert producer.trace.dispatcher.dropped == 0


async def test_another_trace_topic(server: Deployment, topic: str) -> None:
    other = f"{topic}-trace"
    config = ProducerConfig(enable_msg_trace=True, customized_trace_topic=other)
    async with Producer("traced", server.address, config=config) as producer:
        result = await producer.send(Message(topic, b"x"))
        await producer.send(Message(other, b"a message to the trace topic is not told itself"))
    assert (await way(server.address, result, topic=other)).sends[0][0].msg_id == result.msg_id


async def test_consuming_the_trace_topic_does_not_trace_traces(server: Deployment, topic: str, group: str) -> None:
    other = f"{topic}-trace"
    seen: list[str] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(type(record).__name__ for message in messages for record in decode_trace(message.body))

    producing = ProducerConfig(enable_msg_trace=True, customized_trace_topic=other)
    consuming = PushConfig(enable_msg_trace=True, customized_trace_topic=other, consume_from_where=FIRST)
    async with Producer("traced", server.address, config=producing) as producer:
        await producer.send(Message(topic, b"x"))
    consumer = PushConsumer(group, listener, server.address, config=consuming)
    await consumer.subscribe(other)
    async with consumer:
        await until(lambda: seen)
        assert consumer.trace is not None
        await consumer.trace.close()
    assert seen == ["Pub"]


async def test_a_broker_that_does_not_want_traces_gets_none() -> None:
    async with Cluster(broker_keys={"traceOn": "false", "traceTopicEnable": "true"}) as cluster:
        async with Producer("p", cluster.namesrv_address, config=TRACED) as producer:
            await producer.send(Message("T", b"x"))
        async with Admin(cluster.namesrv_address) as admin:
            stats = await admin.topic_stats(TRACE_TOPIC)
    assert sum(offset.max_offset for offset in stats.offset_table.values()) == 0


async def test_a_trace_topic_that_is_missing_stops_no_message(caplog: pytest.LogCaptureFixture) -> None:
    async with Cluster(broker_keys={"autoCreateTopicEnable": "false"}) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("T", queues=1)
        async with Producer("p", cluster.namesrv_address, config=TRACED) as producer:
            results = [await producer.send(Message("T", b"x")) for _ in range(10)]
        assert producer.trace is not None
        assert (len(results), producer.trace.dispatcher.dropped) == (10, 10)
    assert "10 traces were not sent to RMQ_SYS_TRACE_TOPIC" in caplog.text


async def test_a_transaction_end_is_told() -> None:
    async with Cluster(broker_keys={"traceTopicEnable": "true"}) as cluster:
        async with ClientInstance(cluster.namesrv_address) as instance:
            trace = MessageTrace(instance, "tx", "PRODUCE", None)
            trace.end_hook(
                EndTransactionContext(
                    producer_group="tx",
                    message=Message("T", b"x", keys=("k",)),
                    transaction_id="AC01",
                    broker_address=cluster.broker(0).address,
                    state="COMMIT",
                    from_transaction_check=True,
                    confirmed=True,
                )
            )
            await trace.close()
        async with Admin(cluster.namesrv_address) as admin:
            ((ended, _),) = (await way_of(admin, "AC01")).transaction_ends
    assert isinstance(ended, EndTransaction)
    assert (ended.group, ended.transaction_id, ended.transaction_state) == ("tx", "AC01", "COMMIT_MESSAGE")
    assert (ended.from_transaction_check, ended.msg_type) == (True, MessageType.TRANS_COMMIT)


# --- the dispatcher -------------------------------------------------------------------------------


def pub(number: int, *, keys: str | None = None, tags: str = "t") -> Pub:
    return Pub(
        time_ms=number, region="r", group="g", topic="T", msg_id=f"ID{number}", tags=tags, keys=keys, store_host="h:1",
        body_bytes=1, cost_ms=1, msg_type=0, offset_msg_id="", success=True,
    )  # fmt: skip


async def traces(cluster: Cluster, count: int) -> list[MessageExt]:
    """All trace messages, at least so many, in the order they were stored."""
    config = LitePullConfig(consume_from_where=FIRST)
    found: list[MessageExt] = []
    async with LitePullConsumer("reader", cluster.namesrv_address, config=config) as consumer:
        await consumer.subscribe(TRACE_TOPIC)
        while more := await consumer.poll(60 if len(found) < count else 0.5):
            found += more
    return found


async def test_records_go_in_batches_within_the_limits_and_nobody_waits() -> None:
    async with Cluster(broker_keys={"traceTopicEnable": "true"}) as cluster:
        async with ClientInstance(cluster.namesrv_address) as instance:
            dispatcher = TraceDispatcher(instance, "g", "PRODUCE", TRACE_TOPIC)
            for number in range(MAX_WAITING_TRACES + 100):
                dispatcher.append(pub(number))
            assert dispatcher.dropped == 100
            await dispatcher.close()
            large = TraceDispatcher(instance, "g", "CONSUME", TRACE_TOPIC)
            for number in range(10):
                large.append(pub(number, tags="x" * 30_000))
            large.append(pub(10, keys=" ".join(f"key{number:04}" for number in range(10_000))))
            await asyncio.get_running_loop().run_in_executor(None, large.append, pub(11, keys="k1 k2"))
            await large.close()
            assert (dispatcher.dropped, large.dropped) == (100, 0)
        messages = await traces(cluster, MAX_WAITING_TRACES // MAX_TRACE_RECORDS + 1 + 4)
    batches = [decode_trace(message.body) for message in messages]
    assert max(map(len, batches)) == MAX_TRACE_RECORDS
    assert max(len(message.body) for message in messages) <= MAX_TRACE_BODY_BYTES
    small, others = batches[:-4], batches[-4:]
    assert len(messages) == MAX_WAITING_TRACES // MAX_TRACE_RECORDS + 1 + 4
    assert [record.time_ms for batch in small for record in batch if isinstance(record, Pub)] == list(
        range(MAX_WAITING_TRACES)
    )
    assert [len(batch) for batch in others] == [4, 4, 2, 2], "the record with many keys needs room for itself"
    assert set(messages[-1].keys) == {"ID10", "ID11", "k1", "k2"}, "ten thousand are too many to be found by"


async def test_records_are_sent_half_a_second_after_the_first() -> None:
    async with Cluster(broker_keys={"traceTopicEnable": "true"}) as cluster:
        async with ClientInstance(cluster.namesrv_address) as instance:
            dispatcher = TraceDispatcher(instance, "g", "PRODUCE", TRACE_TOPIC)
            dispatcher.append(SubAfter(request_id="R", msg_id="A", cost_ms=1, success=True, keys=None, context_code=0))
            dispatcher.append(pub(1))
            async with Admin(cluster.namesrv_address) as admin:

                async def is_known() -> bool:
                    return (await way_of(admin, "A")).is_known

                await answered(is_known)
                assert (await way_of(admin, "ID1")).is_known
            await dispatcher.close()
        assert len(await traces(cluster, 1)) == 1
