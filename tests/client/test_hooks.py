"""Hooks of producers and consumers, against running systems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    CheckForbiddenContext,
    ClientInstance,
    ClientRpcHook,
    ConsumeFromWhere,
    ConsumeMessageContext,
    ConsumeMessageHook,
    ConsumeResult,
    Message,
    MessageExt,
    PartlySentError,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    Retry,
    SendForbiddenError,
    SendMessageContext,
    SendMessageHook,
)
from cometmq.client.consumer.listener import Listener, Verdict
from cometmq.client.errors import SendFailedError
from cometmq.client.hooks import CommunicationMode, ConsumeReturnType
from cometmq.client.sync import SyncProducer
from cometmq.message.properties import MessageType
from cometmq.remoting.command import RemotingCommand


class Recorder:
    """Remembers what it sees, and passes a note from before to after."""

    def __init__(self) -> None:
        self.before: list[SendMessageContext] = []
        self.after: list[SendMessageContext] = []

    @property
    def hook(self) -> SendMessageHook:
        return SendMessageHook(self._before, self._after)

    def _before(self, context: SendMessageContext) -> None:
        context.props["number"] = len(self.before)
        self.before.append(context)

    def _after(self, context: SendMessageContext) -> None:
        assert context.props["number"] == len(self.after)
        self.after.append(context)


async def test_a_send_hook_sees_every_way_to_send(server: Deployment, topic: str) -> None:
    seen = Recorder()
    async with Producer("hooked", server.address, send_hooks=[seen.hook]) as producer:
        one = await producer.send(Message(topic, b"one", tags="A", delay_level=1))
        many = await producer.send_many([Message(topic, b"many")])
        batch = await producer.send_batch([Message(topic, b"b1"), Message(topic, b"b22")])
        await producer.send_oneway(Message(topic, b"oneway"))
    modes = [context.communication_mode for context in seen.after]
    sync, oneway = CommunicationMode.SYNC, CommunicationMode.ONEWAY
    assert modes == [sync, CommunicationMode.ASYNC, sync, oneway]
    assert [context.results for context in seen.after] == [(one,), tuple(many), tuple(batch), ()]
    assert [context.msg_ids for context in seen.after[:3]] == [
        tuple(result.msg_id for result in results) for results in ([one], many, batch)
    ]
    first, _, both, _ = seen.after
    assert (first.producer_group, first.messages[0].body, first.queue.topic) == ("hooked", b"one", topic)
    assert (first.msg_type, first.body_bytes, first.error) == (MessageType.DELAY, 3, None)
    assert first.broker_address == server.broker.address
    assert (first.region_id, first.trace_on) == ("DefaultRegion", True)
    assert first.begun_at_ms <= first.ended_at_ms
    assert [message.body for message in both.messages] == [b"b1", b"b22"]
    assert [context.results for context in seen.before] == [()] * 4


async def test_a_send_hook_sees_every_attempt_and_why_it_failed(own_server: Deployment) -> None:
    seen = Recorder()
    config = ProducerConfig(send_timeout_s=60)
    async with Producer("hooked", own_server.address, config=config, send_hooks=[seen.hook]) as producer:
        await producer.send(Message("Attempts", b"x"))
        own_server.broker.kill()
        with pytest.raises(SendFailedError) as caught:
            await producer.send(Message("Attempts", b"y"), timeout_s=0.5)
    assert len(seen.before) == len(seen.after) == 1 + len(caught.value.attempts)
    assert [context.error for context in seen.after[1:]] == [error for _, error in caught.value.attempts]


@pytest.mark.parametrize("broken", ["before", "after"])
async def test_a_hook_that_raises_stops_no_message(
    server: Deployment, topic: str, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a bad hook")

    seen = Recorder()
    bad = SendMessageHook(**{broken: fail})
    async with Producer("p", server.address, send_hooks=[bad, seen.hook]) as producer:
        await producer.send(Message(topic, b"x"))
    assert len(seen.after) == 1
    assert "a bad hook" in caplog.text


async def test_an_rpc_hook_that_raises_on_an_answer_stops_no_message(
    server: Deployment, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        raise RuntimeError("a bad hook")

    hooks = [ClientRpcHook(after=fail)]
    async with Producer("p", instance=ClientInstance(server.address, hooks=hooks)) as producer:
        await producer.send(Message(topic, b"x"))
    assert "a bad hook" in caplog.text


async def test_a_check_forbidden_hook_refuses_a_message_once(server: Deployment, topic: str) -> None:
    asked: list[CheckForbiddenContext] = []

    def check(context: CheckForbiddenContext) -> None:
        asked.append(context)
        if b"secret" in context.messages[0].body:
            raise ValueError("no secrets here")

    seen = Recorder()
    async with Producer("p", server.address, send_hooks=[seen.hook], check_forbidden_hooks=[check]) as producer:
        for _ in range(2):  # the first attempt opens the connection, the second one finds it open
            with pytest.raises(SendForbiddenError, match="no secrets here") as caught:
                await producer.send(Message(topic, b"a secret"))
        with pytest.raises(SendForbiddenError):
            await producer.send_oneway(Message(topic, b"a secret"))
        with pytest.raises(PartlySentError) as partly:
            await producer.send_many([Message(topic, b"fine"), Message(topic, b"a secret")])
    assert isinstance(caught.value.cause, ValueError)
    assert caught.value.code == 16
    assert [isinstance(outcome, SendForbiddenError) for outcome in partly.value.outcomes] == [False, True]
    assert len(asked) == 5
    assert [context.messages[0].body for context in seen.before] == [b"fine"]


def test_hooks_without_await(server: Deployment) -> None:
    seen = Recorder()

    def check(context: CheckForbiddenContext) -> None:
        if context.queue.topic != "SyncHooks":
            raise ValueError("another topic")

    with SyncProducer("p", server.address, send_hooks=[seen.hook], check_forbidden_hooks=[check]) as producer:
        producer.send(Message("SyncHooks", b"x"))
        with pytest.raises(SendForbiddenError):
            producer.send(Message("SyncOther", b"x"))
    assert len(seen.after) == 1


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_consume_hook_sees_every_call_of_the_listener(
    server: Deployment, topic: str, group: str, kind: str
) -> None:
    answers: dict[bytes, Verdict] = {
        b"0": None,
        b"1": ConsumeResult.SUCCESS,
        b"2": ConsumeResult.RECONSUME_LATER,
        b"3": Retry(0),
    }

    def listen(messages: Sequence[MessageExt]) -> Verdict:
        if messages[0].body == b"4":
            raise RuntimeError("a bad message")
        return answers[messages[0].body]

    async def listen_async(messages: Sequence[MessageExt]) -> Verdict:
        await asyncio.sleep(0)
        return listen(messages)

    def before(context: ConsumeMessageContext) -> None:
        context.props["seen"] = True

    ended: dict[bytes, ConsumeMessageContext] = {}

    def after(context: ConsumeMessageContext) -> None:
        assert context.props == {"seen": True}
        ended.setdefault(context.messages[0].body, context)
        raise RuntimeError("hooks may fail")

    async with Producer("p", server.address) as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(5)])
    listener: Listener = listen if kind == "plain" else listen_async
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    hooks = [ConsumeMessageHook(before, after)]
    consumer = PushConsumer(group, listener, server.address, config=config, consume_hooks=hooks)
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(ended) == 5)
    ends = {body: (context.success, context.return_type) for body, context in ended.items()}
    assert ends == {
        b"0": (True, ConsumeReturnType.SUCCESS),
        b"1": (True, ConsumeReturnType.SUCCESS),
        b"2": (False, ConsumeReturnType.FAILED),
        b"3": (False, ConsumeReturnType.FAILED),
        b"4": (False, ConsumeReturnType.EXCEPTION),
    }
    assert {context.consumer_group for context in ended.values()} == {group}
    assert ended[b"0"].status == "CONSUME_SUCCESS"
    assert ended[b"4"].status == "RECONSUME_LATER"
