"""Receiving over gRPC: receive, acknowledge, change the time, dead letters, renewal."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tests.broker.wire import send_header
from tests.helpers.waiting import until
from tests.proxy.client import Client, receive

from cometmq.client import Message
from cometmq.proxy.converter import duration
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster

LAST_SECOND = 253_402_300_799
"""Of the year 9999, with which timestamps end."""
G, T = v2.Resource(name="G"), v2.Resource(name="T")


async def messages_of(client: Client, topic: str = "T", **fields: Any) -> list[v2.Message]:
    """The messages of one receive; empty when it says that there is none."""
    answers = await client.receive(receive(topic, "G", "broker-0", **fields))
    assert answers[-1].WhichOneof("content") == "delivery_timestamp"
    if answers[0].status.code != Code.OK:
        assert (answers[0].status.code, answers[0].status.message) == (Code.MESSAGE_NOT_FOUND, "no new message")
        return []
    return [answer.message for answer in answers[1:-1]]


async def all_of(client: Client, count: int, **fields: Any) -> list[v2.Message]:
    """So many messages, by several receives."""
    found: list[v2.Message] = []
    while len(found) < count:
        found += await messages_of(client, **fields)
    return found


async def ack(client: Client, *messages: v2.Message) -> v2.AckMessageResponse:
    entries = [
        v2.AckMessageEntry(
            message_id=found.system_properties.message_id, receipt_handle=found.system_properties.receipt_handle
        )
        for found in messages
    ]
    answer = await client.ask("AckMessage", v2.AckMessageRequest(group=G, topic=messages[0].topic, entries=entries))
    assert isinstance(answer, v2.AckMessageResponse)
    return answer


async def change(client: Client, handle: str, ms: int) -> v2.ChangeInvisibleDurationResponse:
    answer = await client.ask(
        "ChangeInvisibleDuration",
        v2.ChangeInvisibleDurationRequest(group=G, topic=T, receipt_handle=handle, invisible_duration=duration(ms)),
    )
    assert isinstance(answer, v2.ChangeInvisibleDurationResponse)
    return answer


@pytest.mark.parametrize("text", ["9" * 19, "9" * 30, "9" * 5000, "x", " 5", "\u00a05", "-", "9223372036854775807"])
async def test_no_property_of_a_message_stops_its_queue(cluster: Cluster, client: Client, text: str) -> None:
    """Producers of the other protocol may set any property that has a meaning here only."""
    await client.subscribe("G", "T")
    names = (
        "BORN_TIMESTAMP",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "_SYS_MSG_PRIORITY_",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
    )
    async with RemotingClient() as producer:
        for name in names:
            header = send_header("T", properties=f"{name}\x01{text}")
            answer = await producer.invoke(
                cluster.brokers[0].address, RequestCode.SEND_MESSAGE_V2, header, name.encode()
            )
            assert answer.code == 0
    found = await all_of(client, len(names))
    assert {bytes(one.body).decode() for one in found} == set(names)
    for one in found:
        assert 0 <= one.system_properties.born_timestamp.seconds <= LAST_SECOND
        assert 0 <= one.system_properties.delivery_timestamp.seconds <= LAST_SECOND
        assert one.system_properties.priority == 0


async def test_a_message_is_received_with_all_its_parts_and_acknowledged(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    sent = await client.send("T", b"body", properties={"color": "red"}, tag="a", keys=["k1", "k2"])
    (found,) = await messages_of(client)
    system = found.system_properties
    assert found.body == b"body"
    assert dict(found.user_properties) == {"color": "red"}
    assert (system.tag, list(system.keys)) == ("a", ["k1", "k2"])
    assert system.message_id == sent.entries[0].message_id
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert system.body_encoding == v2.Encoding.IDENTITY
    assert system.message_type == v2.MessageType.NORMAL
    assert system.delivery_attempt == 1
    assert len(system.receipt_handle.split(" ")) == 9
    answer = await ack(client, found)
    assert answer.status.code == Code.OK
    assert answer.entries[0].status.code == Code.OK
    assert cluster.broker(0).offsets.query("G", "T", system.queue_id) == 1


async def test_a_receive_waits_for_a_message(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    waiting = asyncio.ensure_future(messages_of(client))
    await until(lambda: len(cluster.broker(0).pops.polling) == 1)
    await client.send("T", b"late")
    assert [found.body for found in await waiting] == [b"late"]


async def test_what_is_not_acknowledged_comes_again(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    await client.send("T", b"again")
    (first,) = await messages_of(client)
    changed = await change(client, first.system_properties.receipt_handle, 0)
    assert changed.status.code == Code.OK
    assert changed.receipt_handle != first.system_properties.receipt_handle
    (second,) = await all_of(client, 1)
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert second.topic.name == "T"
    assert dict(second.user_properties) == {}
    state = cluster.broker(0).pops.state
    assert state.in_flight("%RETRY%G_T", "G") == 1
    assert (await ack(client, second)).status.code == Code.OK
    assert state.in_flight("%RETRY%G_T", "G") == state.in_flight("T", "G") == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"invisible_duration": duration(9_999)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": duration(43_200_001)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"batch_size": -1}, Code.BAD_REQUEST),
    ],
)
async def test_a_wrong_receive_is_refused(client: Client, fields: dict[str, Any], code: Code) -> None:
    answers = await client.receive(receive("T", "G", "broker-0", **fields))
    assert answers[0].status.code == code


async def test_a_deadline_without_time_to_poll_is_refused(client: Client) -> None:
    answers = await client.receive(receive("T", "G", "broker-0"), timeout=3)
    assert answers[0].status.code == Code.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize(
    "handle",
    ["", "nonsense", "0 1 2 3", "0 0 30000 0 0 broker-0 0 0 0", "a b c d e f g h", "9" * 100_000],
    ids=["empty", "word", "short", "past", "letters", "long"],
)
async def test_a_forged_handle_is_refused(client: Client, handle: str) -> None:
    entry = v2.AckMessageEntry(message_id="x", receipt_handle=handle)
    answer = await client.ask("AckMessage", v2.AckMessageRequest(group=G, topic=T, entries=[entry]))
    assert answer.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    assert answer.status.message == "INVALID_RECEIPT_HANDLE"  # as Apache's endpoint words it
    changed = await change(client, handle, 1_000)
    assert changed.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_handle_with_the_log_offset_of_another_message_makes_no_dead_letter(
    cluster: Cluster, client: Client
) -> None:
    await cluster.create_topic("Theirs")
    await client.subscribe("G", "T")
    await client.send("Theirs", b"secret")
    await client.send("T", b"mine")
    (mine,) = await messages_of(client)
    handle = mine.system_properties.receipt_handle
    forged = handle.rpartition(" ")[0] + " 0"
    for text, code in ((forged, Code.INVALID_RECEIPT_HANDLE), (handle, Code.OK)):
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=G, topic=T, receipt_handle=text, message_id=mine.system_properties.message_id
        )
        assert (await client.ask("ForwardMessageToDeadLetterQueue", request)).status.code == code
    assert cluster.broker(0).store.queue("%DLQ%G", 0).max_offset() == 1


async def test_results_that_differ_are_told_for_each_message(client: Client) -> None:
    await client.subscribe("G", "T")
    await client.send("T", b"1")
    (found,) = await messages_of(client)
    wrong = v2.Message(system_properties=v2.SystemProperties(message_id="x", receipt_handle="nonsense"))
    answer = await ack(client, found, wrong)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_a_message_group_that_is_held_stops_no_other_over_grpc(cluster: Cluster, client: Client) -> None:
    await cluster.create_topic("F", queues=1)
    broker = cluster.broker(0)
    broker.topics.table["F"].attributes = {"message.type": "FIFO"}
    await client.subscribe("G", "F")
    group = broker.groups.find("G")
    assert group is not None
    group.consume_message_orderly = True
    for body in (b"a1", b"a2", b"b1", b"b2"):
        assert (await client.send("F", body, message_group=body[:1].decode())).status.code == Code.OK
    (a1,) = await messages_of(client, "F", batch_size=1)
    others = await messages_of(client, "F")
    waiting = asyncio.create_task(messages_of(client, "F"))
    await ack(client, a1)
    (a2,) = await waiting
    assert [found.body for found in (a1, *others, a2)] == [b"a1", b"b1", b"b2", b"a2"]
    assert [found.system_properties.message_group for found in (a1, *others, a2)] == ["a", "b", "b", "a"]


async def test_a_message_goes_to_the_dead_letters(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    await client.send("T", b"dead")
    (found,) = await messages_of(client)
    answer = await client.ask(
        "ForwardMessageToDeadLetterQueue",
        v2.ForwardMessageToDeadLetterQueueRequest(
            group=G,
            topic=T,
            receipt_handle=found.system_properties.receipt_handle,
            message_id=found.system_properties.message_id,
        ),
    )
    assert answer.status.code == Code.OK, answer
    async with cluster.inbox("%DLQ%G") as inbox:
        (dead,) = await inbox.expect(1)
    assert dead.body == b"dead"


async def test_messages_of_remoting_are_received(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    for number in range(10):
        await cluster.send(Message("T", b"%d" % number, tags="a", keys=("k",)))
    found = await all_of(client, 10)
    assert {message.body for message in found} == {b"%d" % number for number in range(10)}
    assert (await ack(client, *found)).status.code == Code.OK


async def test_a_client_that_leaves_gives_its_waiting_receive_back(cluster: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        other = Client(channel)
        await other.subscribe("G", "T")
        waiting = asyncio.ensure_future(messages_of(other))
        await until(lambda: len(cluster.broker(0).pops.polling) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await client.send("T", b"for whoever is there")
    (found,) = await asyncio.wait_for(all_of(client, 1), 10)  # long before the 30 s that the other has asked for
    assert found.body == b"for whoever is there"


async def test_offsets_are_asked_and_set(client: Client) -> None:
    for number in range(4):
        await client.send("T", b"%d" % number)
    queue = v2.MessageQueue(topic=T, id=0, broker=v2.Broker(name="broker-0"))
    end = await client.ask(
        "QueryOffset", v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=v2.QueryOffsetPolicy.END)
    )
    assert (end.status.code, end.offset) == (Code.OK, 1)
    none = await client.ask("GetOffset", v2.GetOffsetRequest(group=G, message_queue=queue))
    assert none.status.code == Code.OFFSET_NOT_FOUND
    done = await client.ask("UpdateOffset", v2.UpdateOffsetRequest(group=G, message_queue=queue, offset=1))
    assert done.status.code == Code.OK
    offset = await client.ask("GetOffset", v2.GetOffsetRequest(group=G, message_queue=queue))
    assert offset.offset == 1


async def test_a_tag_of_ten_thousand_characters_is_subscribed_to(client: Client) -> None:
    tag = "t" * 10_000
    expression = v2.FilterExpression(type=v2.FilterType.TAG, expression=tag)
    entry = v2.SubscriptionEntry(topic=v2.Resource(name="T"), expression=expression)
    subscription = v2.Subscription(group=v2.Resource(name="G"), subscriptions=[entry])
    settings = v2.Settings(client_type=v2.ClientType.SIMPLE_CONSUMER, subscription=subscription)
    await client.telemetry().settings(settings)
    await client.send("T", b"other", tag="u")
    await client.send("T", b"wanted", tag=tag)
    request = receive("T", "G", "broker-0")
    request.filter_expression.CopyFrom(expression)
    answers = await client.receive(request)
    assert [answer.message.body for answer in answers if answer.HasField("message")] == [b"wanted"]
