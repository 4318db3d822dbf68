from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.waiting import answered
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ClientInstance,
    ClientRpcHook,
    Message,
    MessageExt,
    PartlySentError,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    SendStatus,
)
from cometmq.client.errors import (
    BrokerError,
    ClientStateError,
    IllegalMessageError,
    RemotingConnectError,
    RouteNotFoundError,
)
from cometmq.client.route import TopicRoute
from cometmq.client.route.table import RouteTable
from cometmq.client.send.delivery import Delivery
from cometmq.client.send.sender import Sender
from cometmq.message.sysflag import CompressionType
from cometmq.remoting.command import RemotingCommand


async def stored(server: Deployment, topic: str, count: int) -> list[MessageExt]:
    """All messages of a topic, queue after queue, once there are ``count`` (Apache shows them after a moment)."""

    async def enough() -> list[MessageExt] | None:
        found = await _visible(server, topic)
        return found if len(found) >= count else None

    found = await answered(enough)
    assert found is not None
    return found


async def _visible(server: Deployment, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with PullConsumer("reader", server.address) as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (pulled := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
                found += pulled.messages
                offset = pulled.next_offset
    return found


async def test_a_message_is_stored_with_everything_it_has(server: Deployment, topic: str) -> None:
    sent = Message(topic, "grüße".encode(), tags="A", keys=("k1", "k2"), properties={"ö": '"\\ü'}, flag=7)
    async with Producer("p", server.address) as producer:
        result = await producer.send(sent)
    assert result.status is SendStatus.SEND_OK
    (message,) = await stored(server, topic, 1)
    assert (message.topic, message.body, message.tags, message.keys, message.flag) == (
        topic,
        sent.body,
        "A",
        ("k1", "k2"),
        7,
    )
    assert message.properties["ö"] == '"\\ü'
    assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)
    assert (message.queue_id, message.queue_offset) == (result.queue.queue_id, result.queue_offset)


async def test_queues_are_taken_in_turn(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        results = [await producer.send(Message(topic, b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_queue_can_be_chosen_in_three_ways(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        queues = await producer.queues(topic)
        message = Message(topic, b"x")
        assert (await producer.send(message, queue=queues[2])).queue == queues[2]
        assert (await producer.send(message, selector=lambda choice, _: choice[-1])).queue == queues[-1]
        by_key = {(await producer.send(message, sharding_key="order-17")).queue for _ in range(5)}
        assert len(by_key) == 1
        with pytest.raises(ZeroDivisionError):
            await producer.send(message, selector=lambda choice, _: choice[1 // 0])


async def test_oneway_messages_arrive(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        for number in range(5):
            await producer.send_oneway(Message(topic, b"%d" % number))
    assert len(await stored(server, topic, 5)) == 5


async def test_many_messages_in_flight_are_all_stored_once(server: Deployment, topic: str) -> None:
    # A message that is not answered in time is sent again: a busy machine needs more than the 3 s of the default.
    async with Producer("p", server.address, config=ProducerConfig(send_timeout_s=60)) as producer:
        results = await producer.send_many([Message(topic, b"%d" % number) for number in range(2000)])
    messages = await stored(server, topic, 2000)
    assert sorted(int(message.body) for message in messages) == list(range(2000))
    by_id = {message.msg_id: int(message.body) for message in messages}
    assert [by_id[result.msg_id] for result in results] == list(range(2000))


async def test_the_time_of_many_messages_begins_when_their_route_is_known(
    server: Deployment, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_at: list[float] = []
    ask = RouteTable.get_for_send

    async def asked(routes: RouteTable, topic: str, queue_nums: int) -> TopicRoute:
        route = await ask(routes, topic, queue_nums)
        known_at.append(routes._clock.monotonic())
        return route

    monkeypatch.setattr(RouteTable, "get_for_send", asked)
    begun: list[float] = []
    start = Sender.start

    def started(sender: Sender, delivery: Delivery) -> None:
        begun.append(delivery.begun_at)
        start(sender, delivery)

    monkeypatch.setattr(Sender, "start", started)
    async with Producer("p", server.address) as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(50)])
    assert (len(known_at), len(begun)) == (1, 50)
    assert known_at[0] <= min(begun)


async def test_a_batch_stands_in_one_queue_in_order(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        results = await producer.send_batch([Message(topic, b"%d" % number, tags="B") for number in range(50)])
    assert len({result.queue for result in results}) == 1
    messages = await stored(server, topic, 50)
    assert [int(message.body) for message in messages] == list(range(50))
    assert [message.msg_id for message in messages] == [result.msg_id for result in results]
    assert [message.offset_msg_id for message in messages] == [result.offset_msg_id for result in results]
    assert [message.queue_offset for message in messages] == [result.queue_offset for result in results]


async def test_what_cannot_be_in_a_batch_goes_alone(server: Deployment, topic: str) -> None:
    config = ProducerConfig(max_message_bytes=5000, compress_over_bytes=10_000)
    todo = [
        Message(topic, b"together 1"),
        Message(topic, b"waits for nothing", wait_store_msg_ok=False),
        Message(topic, b"together 2", properties={"color": "red"}),
        Message(topic, b"x" * 5000),
        Message(topic, b"later", delay_level=18),
    ]
    async with Producer("p", server.address, config=config) as producer:
        results = await producer.send_batch(todo)
    assert len({result.msg_id for result in results}) == 5
    assert results[0].queue == results[2].queue
    assert results[0].queue_offset + 1 == results[2].queue_offset
    assert {len(message.body) for message in await stored(server, topic, 4)} >= {10, 17, 5000}


@pytest.mark.parametrize(
    "wrong",
    [
        Message("T", b""),
        Message("T", b"x" * 5001),
        Message("bad topic", b"x"),
        Message("T", b"x", properties={"KEYS": "mine"}),
        Message("T", b"x", properties={"a": "b\x02c"}),
        Message("T", b"x", delay_level=1, properties={"a\x01": "b"}),
        Message("T", b"x", properties={"a": "b" * 40_000}),
        Message("T", b"x", tags=5),  # type: ignore[arg-type]
    ],
    ids=["empty", "large", "topic", "reserved", "separator", "delayed separator", "properties", "no text"],
)
async def test_of_a_list_with_a_message_that_is_not_allowed_nothing_is_sent(
    server: Deployment, topic: str, wrong: Message
) -> None:
    async with Producer("p", server.address, config=ProducerConfig(max_message_bytes=5000)) as producer:
        with pytest.raises(IllegalMessageError):
            await producer.send_batch([Message(topic, b"x" * 4000), Message(topic, b"y" * 4000), wrong])
        await producer.send(Message(topic, b"only"))
    assert [message.body for message in await stored(server, topic, 1)] == [b"only"]


async def test_a_list_larger_than_a_batch_is_cut(server: Deployment, topic: str) -> None:
    config = ProducerConfig(max_message_bytes=10_000)
    async with Producer("p", server.address, config=config) as producer:
        results = await producer.send_batch([Message(topic, b"%04d" % number * 250) for number in range(40)])
    assert len({result.queue for result in results}) > 1
    assert sorted(int(message.body[:4]) for message in await stored(server, topic, 40)) == list(range(40))


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD])
async def test_large_bodies_travel_packed(server: Deployment, topic: str, kind: CompressionType) -> None:
    body = b"a body that packs well " * 10_000
    async with Producer("p", server.address, config=ProducerConfig(compression=kind)) as producer:
        await producer.send(Message(topic, body))
    (message,) = await stored(server, topic, 1)
    assert len(message.stored_body) < len(body) // 10
    assert message.body == body


async def test_the_largest_body_arrives_though_it_does_not_pack(server: Deployment, topic: str) -> None:
    body = random.Random(1).randbytes(4 << 20)
    async with Producer("p", server.address) as producer:
        await producer.send(Message(topic, body), timeout_s=60)
    (message,) = await stored(server, topic, 1)
    assert message.stored_body == body


@pytest.mark.parametrize("queues", [2, 4, 6])
async def test_an_unknown_topic_is_made_by_the_broker(server: Deployment, topic: str, queues: int) -> None:
    fresh = f"{topic}-auto"
    config = ProducerConfig(default_topic_queue_nums=queues, retry_times_when_send_failed=0)
    async with Producer("p", server.address, config=config) as producer:
        results = await producer.send_many([Message(fresh, b"x") for _ in range(2 * queues)])
    assert {result.queue.queue_id for result in results} == set(range(queues))


async def test_a_topic_that_nobody_may_make_has_no_route(server: Deployment) -> None:
    async with Admin(server.address) as admin:
        with pytest.raises(RouteNotFoundError, match="create the topic") as caught:
            await admin.topic_route("NobodyMadeThisTopic")
    assert caught.value.code == 17


@pytest.mark.parametrize("given", [{"body": None}, {"body": 7}, {"flag": 2**31}, {"delay_level": 2**31}], ids=str)
async def test_what_no_record_holds_is_told_however_it_is_sent(
    server: Deployment, topic: str, given: dict[str, Any]
) -> None:
    message = Message(**{"topic": topic, "body": b"x"} | given)
    async with Producer("p", server.address) as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(IllegalMessageError):
                await send(message)
        for send_all in (producer.send_batch, producer.send_many):
            with pytest.raises(IllegalMessageError):
                await send_all([message])


async def test_oversized_messages_are_refused_here_and_by_the_broker(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        with pytest.raises(IllegalMessageError, match="exceeds the limit of 4194304"):
            await producer.send(Message(topic, b"x" * (4 * 1024 * 1024 + 1)))
    config = ProducerConfig(max_message_bytes=16 << 20, compress_over_bytes=16 << 20)
    async with Producer("p", server.address, config=config) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(Message(topic, b"x" * (5 * 1024 * 1024)), timeout_s=60)
    assert caught.value.code == 13
    assert "maxMessageSize" in (caught.value.next_step or "")


async def test_failures_in_a_list_name_their_messages(server: Deployment, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        messages = [Message(topic, b"good"), Message("RMQ_SYS_TRANS_HALF_TOPIC", b"bad"), Message(topic, b"good")]
        with pytest.raises(PartlySentError, match="1 of 3") as caught:
            await producer.send_many(messages)
    kinds = [isinstance(outcome, BaseException) for outcome in caught.value.outcomes]
    assert kinds == [False, True, False]


async def test_without_a_nameserver_the_error_says_so() -> None:
    async with Producer("p", "127.0.0.1:1") as producer:
        with pytest.raises(RemotingConnectError, match=r"cannot connect to 127\.0\.0\.1:1:"):
            await producer.send(Message("T", b"x"), timeout_s=2)


async def test_a_second_nameserver_takes_over(server: Deployment, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.client.route.table.random", SimpleNamespace(randrange=lambda _: 0))
    async with Producer("p", f"127.0.0.1:1;{server.address}") as producer:
        assert (await producer.send(Message(topic, b"x"))).status is SendStatus.SEND_OK


async def test_a_producer_is_used_between_start_and_close(server: Deployment, topic: str) -> None:
    producer = Producer("p", server.address)
    with pytest.raises(ClientStateError, match="async with"):
        await producer.send(Message(topic, b"x"))
    async with producer:
        sending = asyncio.create_task(producer.send(Message(topic, b"x")))
        await asyncio.sleep(0)
    assert (await sending).status is SendStatus.SEND_OK
    with pytest.raises(ClientStateError):
        await producer.send(Message(topic, b"x"))


async def test_hooks_see_every_request_and_answer(server: Deployment, topic: str) -> None:
    sent: list[int] = []
    answered: list[int] = []

    def before(peer: str, request: RemotingCommand) -> None:
        request.ext_fields["X-Trace"] = "seen"
        sent.append(request.code)

    def after(peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        assert request.ext_fields["X-Trace"] == "seen"
        answered.append(request.code)

    hooks = [ClientRpcHook(before, after)]
    async with Producer("p", instance=ClientInstance(server.address, hooks=hooks)) as producer:
        await producer.send(Message(topic, b"1", tags="A"))
        await producer.send_batch([Message(topic, b"2"), Message(topic, b"3")])
        await producer.send_oneway(Message(topic, b"4"))
    assert {105, 310, 320} <= set(answered)
    assert sent.count(310) == 2
    assert sorted(message.body for message in await stored(server, topic, 4)) == [b"1", b"2", b"3", b"4"]


async def test_producers_share_the_connections_of_an_instance(server: Deployment, topic: str) -> None:
    async with ClientInstance(server.address) as instance:
        for number in range(3):
            async with Producer(f"p{number}", instance=instance) as producer:
                await producer.send(Message(topic, b"x"))
        assert instance.remoting.live(server.broker.address) is not None


async def test_slow_brokers_are_left_alone_when_asked(server: Deployment, topic: str) -> None:
    config = ProducerConfig(send_latency_fault_enable=True)
    async with Producer("p", server.address, config=config) as producer:
        results = [await producer.send(Message(topic, b"x")) for _ in range(4)]
    assert {result.status for result in results} == {SendStatus.SEND_OK}


@pytest.mark.parametrize("group", ["", "a b", "../x", "x" * 300])
def test_bad_group_names_are_refused(group: str) -> None:
    with pytest.raises(ValueError, match="group"):
        Producer(group)


def test_options_have_ranges() -> None:
    with pytest.raises(ValueError, match="send_timeout_s"):
        ProducerConfig(send_timeout_s=0)
