"""Routes, settings and sends over gRPC, with gRPC's own library as the client."""

from __future__ import annotations

import grpc
import pytest
from tests.proxy.client import Client, message

from cometmq.client import Message
from cometmq.proxy.converter import timestamp
from cometmq.proxy.message_bytes import to_proto
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import Cluster


async def test_a_route_has_an_entry_for_each_queue_with_the_endpoint(cluster: Cluster, client: Client) -> None:
    answer = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    first = answer.message_queues[0]
    assert first.permission == v2.Permission.READ_WRITE
    assert list(first.accept_message_types) == [v2.MessageType.NORMAL]
    assert first.broker.name == "broker-0"
    assert first.broker.endpoints.scheme == v2.AddressScheme.IPv4
    address = first.broker.endpoints.addresses[0]
    assert f"{address.host}:{address.port}" == cluster.grpc_address


@pytest.mark.parametrize(
    ("came_by", "answered"),
    [
        (("outside.example", 31081), ("outside.example", 31081)),
        (("fd00::5", 8081), ("fd00::5", 8081)),
        (("elsewhere.example", 31081), ("127.0.0.1", None)),
    ],
)
async def test_a_client_that_came_by_a_listeners_host_goes_on_by_the_address_that_it_came_by(
    came_by: tuple[str, int], answered: tuple[str, int | None]
) -> None:
    keys = {"advertisedListeners": "outside=outside.example:30911,six=[fd00::5]:10911"}
    point = v2.Endpoints(addresses=[v2.Address(host=came_by[0], port=came_by[1])])
    async with Cluster(grpc=True, broker_keys=keys) as cluster:
        await cluster.create_topic("T")
        own = int(cluster.grpc_address.rpartition(":")[2])
        async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
            request = v2.QueryRouteRequest(topic=v2.Resource(name="T"), endpoints=point)
            answer = await Client(channel).ask("QueryRoute", request)
    addresses = {(found.host, found.port) for one in answer.message_queues for found in one.broker.endpoints.addresses}
    assert addresses == {(answered[0], answered[1] or own)}


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        ("NOPE", Code.TOPIC_NOT_FOUND, "CODE: 17  DESC: No topic route info in name server for the topic: NOPE"),
        ("", Code.ILLEGAL_TOPIC, "The specified topic is blank"),
        (
            "a b",
            Code.ILLEGAL_TOPIC,
            "The specified topic[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("TBW102", Code.ILLEGAL_TOPIC, "cannot access system topic"),
    ],
)
async def test_a_wrong_topic_is_refused_in_apaches_words(client: Client, topic: str, code: Code, words: str) -> None:
    answer = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name=topic)))
    assert (answer.status.code, answer.status.message) == (code, words)


async def test_a_call_without_client_id_is_refused(cluster: Cluster) -> None:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        client = Client(channel, metadata=())
        answer = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
    assert (answer.status.code, answer.status.message) == (Code.CLIENT_ID_REQUIRED, "client id cannot be empty")


async def test_settings_of_a_producer_are_merged(client: Client) -> None:
    stream = await client.publish("T")
    merged = stream.merged
    assert merged is not None
    assert merged.publishing.max_body_size == 4_194_304
    assert merged.publishing.validate_message_type
    assert merged.backoff_policy.max_attempts == 3
    assert merged.backoff_policy.exponential_backoff.initial.nanos == 10_000_000
    assert merged.HasField("metric")
    assert not merged.metric.on
    beat = await client.ask("Heartbeat", v2.HeartbeatRequest(client_type=v2.ClientType.PRODUCER))
    assert beat.status.code == Code.OK


async def test_settings_of_a_consumer_are_merged(client: Client) -> None:
    stream = await client.subscribe("G", "T")
    merged = stream.merged
    assert merged is not None
    assert merged.backoff_policy.max_attempts == 17
    pauses = [pause.seconds for pause in merged.backoff_policy.customized_backoff.next]
    assert pauses[:5] == [1, 5, 10, 30, 60]
    assert pauses[-1] == 7_200
    assert merged.subscription.receive_batch_size == 32
    assert merged.subscription.long_polling_timeout.seconds == 20
    assert not merged.subscription.fifo


async def test_a_client_that_says_that_it_leaves_ends_its_stream_itself(cluster: Cluster, client: Client) -> None:
    stream = await client.publish("T")
    answer = await client.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
    assert answer.status.code == Code.OK
    await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
    assert not stream.call.done()
    await stream.call.done_writing()
    assert await stream.call.code() == grpc.StatusCode.OK


async def test_nodes_client_gets_its_settings_again_after_its_last_route(client: Client) -> None:
    stream = client.telemetry()
    settings = await stream.settings(
        v2.Settings(
            client_type=v2.ClientType.PRODUCER,
            publishing=v2.Publishing(topics=[v2.Resource(name="T")]),
            user_agent=v2.UA(language=v2.Language.NODE_JS),
        )
    )
    for _ in range(2):
        await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
    again = await stream.read()
    assert (again.status.code, again.settings) == (Code.OK, settings)


async def test_settings_of_nobody_end_the_stream(client: Client) -> None:
    stream = client.telemetry()
    await stream.call.write(v2.TelemetryCommand(settings=v2.Settings()))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.call.read()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "there is no publishing or subscription data in settings" in (refused.value.details() or "")


async def test_a_heartbeat_without_settings_is_refused(client: Client) -> None:
    answer = await client.ask("Heartbeat", v2.HeartbeatRequest(client_type=v2.ClientType.PRODUCER))
    assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert answer.status.message == "cannot find client settings for this client"


async def test_a_message_arrives_with_all_its_parts(cluster: Cluster, client: Client) -> None:
    async with cluster.inbox("T") as inbox:
        answer = await client.ask(
            "SendMessage",
            v2.SendMessageRequest(
                messages=[
                    message(
                        "T",
                        b"body",
                        {"color": "red"},
                        message_id="0102FC0000000172F40B16333800000000",
                        tag="\u00a0",
                        keys=["k1", "\u202f", "k2\u3000\u00a02"],
                        born_timestamp=timestamp(1_700_000_000_123),
                        born_host="host-1",
                    )
                ]
            ),
        )
        assert answer.status.code == Code.OK
        entry = answer.entries[0]
        assert entry.message_id == entry.transaction_id == "0102FC0000000172F40B16333800000000"
        assert entry.offset == 0
        (received,) = await inbox.expect(1)
    assert received.body == b"body"
    assert received.msg_id == "0102FC0000000172F40B16333800000000"
    assert (received.tags, received.keys) == ("\u00a0", ("k1", "\u202f", "k2\u3000\u00a02"))
    assert received.properties["color"] == "red"
    assert received.born_timestamp == 1_700_000_000_123


async def test_a_priority_is_stored_by_apaches_name_and_arrives(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "P", "PRIORITY")
    sent = message("P", b"urgent", message_id="0102FC0000000172F40B16333800000001", priority=3)
    async with cluster.inbox("P") as inbox:
        answer = await client.ask("SendMessage", v2.SendMessageRequest(messages=[sent]))
        assert answer.status.code == Code.OK
        (received,) = await inbox.expect(1)
    assert received.properties["_SYS_MSG_PRIORITY_"] == "3"
    given = to_proto(received, topic="P")
    assert (given.system_properties.priority, given.system_properties.message_type) == (3, v2.MessageType.PRIORITY)
    assert not given.user_properties


@pytest.mark.parametrize(
    ("stored", "keys"),
    [(" a\u3000\tb  c ", ["", "a\u3000\tb", "", "c"]), (" ", []), ("one two", ["one", "two"])],
)
async def test_keys_are_split_as_by_java(cluster: Cluster, stored: str, keys: list[str]) -> None:
    async with cluster.inbox("T") as inbox:
        await cluster.send(Message("T", b"x", keys=stored))
        (received,) = await inbox.expect(1)
    assert list(to_proto(received, topic="T").system_properties.keys) == keys
    assert received.keys == tuple(key for key in keys if key)


async def test_messages_of_a_group_share_a_queue_and_others_take_turns(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "FIFO", "FIFO")
    async with cluster.inbox("FIFO", "T") as inbox:
        for number in range(8):
            answer = await client.send("FIFO", b"%d" % number, message_group="orders-1")
            assert answer.status.code == Code.OK, answer
            await client.send("T", b"%d" % number)
        received = await inbox.expect(16)
    fifo = [found for found in received if found.topic == "FIFO"]
    assert len({found.queue_id for found in fifo}) == 1
    assert [found.body for found in sorted(fifo, key=lambda found: found.queue_offset)] == [b"%d" % n for n in range(8)]
    assert {found.queue_id for found in received if found.topic == "T"} == {0, 1, 2, 3}


async def test_a_batch_is_stored_as_single_messages(cluster: Cluster, client: Client) -> None:
    async with cluster.inbox("T") as inbox:
        answer = await client.ask(
            "SendMessage", v2.SendMessageRequest(messages=[message("T", b"a"), message("T", b"b")])
        )
        assert answer.status.code == Code.OK
        assert len(answer.entries) == 1
        assert {found.body for found in await inbox.expect(2)} == {b"a", b"b"}


async def test_what_was_stored_before_a_rejected_message_of_a_request_is_reported_as_stored(
    cluster: Cluster, client: Client
) -> None:
    """A client that sends all of them again would store the first one twice."""
    await make_topic(cluster, "FIFO", "FIFO")
    request = v2.SendMessageRequest(
        messages=[
            message("FIFO", b"stored", message_group="g"),
            message("FIFO", b"rejected", message_group="g", trace_context="t" * 40_000),
            message("FIFO", b"after it", message_group="g"),
        ]
    )
    async with cluster.inbox("FIFO") as inbox:
        answer = await client.ask("SendMessage", request)
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes[0] == Code.OK
        assert Code.OK not in codes[1:]
        assert [entry.message_id for entry in answer.entries] == [
            sent.system_properties.message_id for sent in request.messages
        ]
        assert [found.body for found in await inbox.expect(1)] == [b"stored"]


CASES = [
    ([], Code.MESSAGE_CORRUPTED, "no message to send"),
    ([message("T", b"")], Code.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
    (
        [message("T", b"x" * 4_194_305)],
        Code.MESSAGE_BODY_TOO_LARGE,
        "message body cannot exceed the max 4194304",
    ),
    ([message("T", b"x", message_id="")], Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
    ([message("T", b"x", tag="a|b")], Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
    ([message("T", b"x", tag="\u3000\x1c")], Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"),
    ([message("T", b"x", tag=" ")], Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"),
    (
        [message("T", b"x", {"UNIQ_KEY": "1"})],
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "property is used by system: UNIQ_KEY",
    ),
    ([message("T", b"x", {"a": "v" * 17_000})], Code.MESSAGE_PROPERTIES_TOO_LARGE, "max is 16384"),
    ([message("T", b"x", {f"k{n}": "v" for n in range(129)})], Code.MESSAGE_PROPERTIES_TOO_LARGE, "max is 128"),
    ([message("T", b"x", keys=["\x01"])], Code.ILLEGAL_MESSAGE_KEY, "key cannot be"),
    ([message("T", b"x", message_group="g" * 64)], Code.ILLEGAL_MESSAGE_GROUP, "message group exceed the max size 64"),
    (
        [message("T", b"x", delivery_timestamp=timestamp(4_000_000_000_000))],
        Code.ILLEGAL_DELIVERY_TIME,
        "the max delay time of message is too large, max is 86400000",
    ),
    (
        [message("T", b"x", message_group="g")],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is NORMAL, but actual type is FIFO",
    ),
    (
        [message("NOPE", b"x")],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is UNSPECIFIED, but actual type is NORMAL",
    ),
    ([message("T", b"x"), message("T2", b"x")], Code.MESSAGE_CORRUPTED, "different message topic"),
]


@pytest.mark.parametrize(("messages", "code", "words"), CASES, ids=[Code(code).name for _, code, _ in CASES])
async def test_a_wrong_message_is_refused(client: Client, messages: list[v2.Message], code: Code, words: str) -> None:
    answer = await client.ask("SendMessage", v2.SendMessageRequest(messages=messages))
    assert answer.status.code == code
    assert words in answer.status.message
    assert not answer.entries


async def test_a_delayed_message_is_recalled(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "D", "DELAY")
    due = timestamp(cluster.clock.now_ms() + 60_000)
    sent = await client.send("D", b"later", delivery_timestamp=due)
    handle = sent.entries[0].recall_handle
    assert handle
    topic = v2.Resource(name="D")
    answer = await client.ask("RecallMessage", v2.RecallMessageRequest(topic=topic, recall_handle=handle))
    assert (answer.status.code, answer.message_id) == (Code.OK, sent.entries[0].message_id)
    wrong = await client.ask("RecallMessage", v2.RecallMessageRequest(topic=topic, recall_handle="nonsense"))
    assert wrong.status.code == Code.INTERNAL_SERVER_ERROR


async def test_a_transaction_is_committed_or_rolled_back(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "TX", "TRANSACTION")
    await client.publish("TX")
    async with cluster.inbox("TX") as inbox:
        for body, resolution in (
            (b"back", v2.TransactionResolution.ROLLBACK),
            (b"done", v2.TransactionResolution.COMMIT),
        ):
            sent = await client.send("TX", body, message_type=v2.MessageType.TRANSACTION)
            entry = sent.entries[0]
            assert entry.transaction_id
            answer = await client.ask(
                "EndTransaction",
                v2.EndTransactionRequest(
                    topic=v2.Resource(name="TX"),
                    message_id=entry.message_id,
                    transaction_id=entry.transaction_id,
                    resolution=resolution,
                ),
            )
            assert answer.status.code == Code.OK
        assert [found.body for found in await inbox.expect(1)] == [b"done"]


async def test_a_transaction_without_a_resolution_stays_open(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "TX", "TRANSACTION")
    await client.publish("TX")
    sent = await client.send("TX", b"half", message_type=v2.MessageType.TRANSACTION)
    entry = sent.entries[0]
    end = v2.EndTransactionRequest(
        topic=v2.Resource(name="TX"), message_id=entry.message_id, transaction_id=entry.transaction_id
    )
    assert (await client.ask("EndTransaction", end)).status.code == Code.OK
    end.resolution = v2.TransactionResolution.COMMIT
    async with cluster.inbox("TX") as inbox:
        assert (await client.ask("EndTransaction", end)).status.code == Code.OK
        assert [found.body for found in await inbox.expect(1)] == [b"half"]


async def test_an_orphan_is_asked_about_over_telemetry() -> None:
    keys = {"transactionTimeOut": "100", "transactionCheckInterval": "100"}
    async with Cluster(grpc=True, broker_keys=keys) as cluster:
        await make_topic(cluster, "TX", "TRANSACTION")
        async with grpc.aio.insecure_channel(cluster.grpc_address) as channel, cluster.inbox("TX") as inbox:
            client = Client(channel)
            stream = await client.publish("TX")
            sent = await client.send("TX", b"orphan", message_type=v2.MessageType.TRANSACTION)
            command = await stream.read()
            orphan = command.recover_orphaned_transaction_command
            assert orphan.message.body == b"orphan"
            assert orphan.message.system_properties.message_id == sent.entries[0].message_id
            answer = await client.ask(
                "EndTransaction",
                v2.EndTransactionRequest(
                    topic=v2.Resource(name="TX"),
                    message_id=orphan.message.system_properties.message_id,
                    transaction_id=orphan.transaction_id,
                    resolution=v2.TransactionResolution.COMMIT,
                    source=v2.TransactionSource.SOURCE_SERVER_CHECK,
                ),
            )
            assert answer.status.code == Code.OK
            assert [found.body for found in await inbox.expect(1)] == [b"orphan"]


async def make_topic(cluster: Cluster, name: str, kind: str) -> None:
    """Make a topic whose messages have a type."""
    await cluster.create_topic(name)
    cluster.broker(0).topics.table[name].attributes = {"message.type": kind}


async def test_messages_of_remoting_and_grpc_are_the_same(cluster: Cluster, client: Client) -> None:
    async with cluster.inbox("T") as inbox:
        await cluster.send(Message("T", b"remoting"))
        await client.send("T", b"grpc")
        assert {found.body for found in await inbox.expect(2)} == {b"remoting", b"grpc"}
