"""Consumers answer administrators: their running state (307), and one message consumed now (309)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    ClientInstance,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    Suspend,
)
from cometmq.client.consumer.listener import Listener, Verdict
from cometmq.client.errors import BrokerError
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def ask_state(server: Deployment, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
    header = GetConsumerRunningInfoRequestHeader(group, client_id, jstack_enable=stacks)
    async with ClientInstance(server.address) as instance:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        answer = await instance.call(server.broker.address, code, header, doing="asking", timeout_s=60)
    return decode_body(ConsumerRunningInfo, answer.body)


async def consume_now(server: Deployment, group: str, client_id: str, msg_id: str) -> ConsumeMessageDirectlyResult:
    header = ConsumeMessageDirectlyResultRequestHeader(group, client_id, msg_id)
    async with ClientInstance(server.address) as instance:
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await instance.call(server.broker.address, code, header, doing="asking", timeout_s=60)
    return decode_body(ConsumeMessageDirectlyResult, answer.body)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_tells_its_state(server: Deployment, topic: str, group: str, orderly: bool) -> None:
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        seen.extend(message.body for message in messages)
        return ConsumeResult.RECONSUME_LATER if orderly and seen.count(b"3") == 1 and seen[-1] == b"3" else None

    config = PushConfig(orderly=orderly, consume_from_where=FIRST, suspend_current_queue_s=0.05)
    consumer = PushConsumer(group, listener, server.address, config=config)
    await consumer.subscribe(topic, "*")
    async with consumer, Producer("p", server.address) as producer:
        for number in range(20):
            await producer.send(Message(topic, b"%d" % number))
        await until(lambda: len(set(seen)) == 20 and not consumer.cached_count)
        info = await ask_state(server, group, consumer.instance.client_id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CONSUMEORDERLY"] == str(orderly).lower()
        assert info.properties["PROP_NAMESERVER_ADDR"] == f"{server.address};"
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
        assert (info.properties["messageModel"], info.properties["maxReconsumeTimes"]) == ("CLUSTERING", "-1")
        assert [subscription.topic for subscription in info.subscription_set] == [f"%RETRY%{group}", topic]
        mine = {queue: state for queue, state in info.mq_table.items() if queue.topic == topic}
        assert set(mine) == consumer.assignment
        assert sum(state.commit_offset for state in mine.values()) == 20
        for state in mine.values():
            assert (state.cached_msg_count, state.dropped) == (0, False)
            assert state.locked
            assert state.last_pull_timestamp >= state.last_consume_timestamp > 0 or state.commit_offset == 0
        status = info.status_table[topic]
        assert status.consume_ok_tps > 0
        assert status.consume_failed_msgs == (1 if orderly else 0)
        assert info.jstack is None
        deep = await ask_state(server, group, consumer.instance.client_id, stacks=True)
        assert "thread MainThread" in str(deep.jstack)
        assert "test_running_info" in str(deep.jstack)


async def test_what_waits_for_consumption_is_counted(server: Deployment, topic: str, group: str) -> None:
    async def listener(_messages: Sequence[MessageExt]) -> Verdict:
        return Suspend(seconds=60.0)

    consumer = PushConsumer(group, listener, server.address, config=PushConfig(orderly=True, consume_from_where=FIRST))
    await consumer.subscribe(topic)
    async with consumer, Producer("p", server.address) as producer:
        queue = (await producer.queues(topic))[1]
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number), queue=queue)
        await until(lambda: consumer.cached_count == 5)
        state = (await ask_state(server, group, consumer.instance.client_id)).mq_table[queue]
    assert (state.cached_msg_count, state.cached_msg_min_offset, state.cached_msg_max_offset) == (5, 0, 4)
    assert state.commit_offset == 0


async def test_a_lite_pull_consumer_tells_its_state_and_consumes_nothing(
    server: Deployment, topic: str, group: str
) -> None:
    config = LitePullConfig(consume_from_where=FIRST)
    async with (
        Producer("p", server.address) as producer,
        LitePullConsumer(group, server.address, config=config) as consumer,
    ):
        sent = await producer.send(Message(topic, b"x"))
        await consumer.subscribe(topic)
        info = await ask_state(server, group, consumer.instance.client_id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert topic in [subscription.topic for subscription in info.subscription_set]
        with pytest.raises(BrokerError, match="not exist in this consumer"):
            await consume_now(server, group, consumer.instance.client_id, sent.offset_msg_id)


def fails(_messages: Sequence[MessageExt]) -> Verdict:
    raise ValueError("no such order")


def later(_messages: Sequence[MessageExt]) -> Verdict:
    return ConsumeResult.RECONSUME_LATER


async def done(_messages: Sequence[MessageExt]) -> None:
    return None


@pytest.mark.parametrize(
    ("listener", "outcome", "remark"),
    [
        (done, "CR_SUCCESS", None),
        (later, "CR_LATER", None),
        (fails, "CR_THROW_EXCEPTION", "ValueError: no such order"),
    ],
)
@pytest.mark.parametrize("orderly", [False, True])
async def test_one_message_is_consumed_now(
    server: Deployment, topic: str, group: str, listener: Listener, outcome: str, remark: Any, orderly: bool
) -> None:
    consumer = PushConsumer(group, listener, server.address, config=PushConfig(orderly=orderly))
    await consumer.subscribe(topic, "NoSuchTag")
    async with consumer, Producer("p", server.address) as producer:
        sent = await producer.send(Message(topic, b"x", tags="Other"))
        result = await consume_now(server, group, consumer.instance.client_id, sent.offset_msg_id)
    assert (result.consume_result, result.order, result.remark) == (outcome, orderly, remark)
