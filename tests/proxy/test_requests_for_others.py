"""Calls that name, hold or guess what belongs to others: they do nothing, and nobody learns what there is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from tests.proxy.client import Client, message, receive
from tests.proxy.test_access import ALICE, T, running, signed

from cometmq.client.admin import Admin
from cometmq.client.instance import ClientInstance
from cometmq.proxy.converter import duration, timestamp
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = signed("root-account", "secret-of-root")
HANDLE = "0 1700000000000 30000 0 0 broker-0 0 0 0"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running(tmp_path_factory.mktemp("others"), 2) as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def channel(cluster: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as opened:
        yield opened


def client(channel: grpc.aio.Channel, headers: dict[str, str], client_id: str = "") -> Client:
    made = Client(channel)
    metadata = dict(made.metadata) | ({"x-mq-client-id": client_id} if client_id else {})
    made.metadata = (*metadata.items(), *headers.items())
    return made


async def test_a_client_with_the_id_of_another_accounts_client_is_another_one(channel: grpc.aio.Channel) -> None:
    victim, thief = client(channel, ROOT, "one-id"), client(channel, ALICE, "one-id")
    settings = await victim.publish("Theirs")
    left = await thief.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
    assert left.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    stolen = await thief.publish("Ours")
    assert settings.merged is not None
    again = await settings.settings(settings.merged)
    assert [topic.name for topic in again.publishing.topics] == ["Theirs"]
    ours = await thief.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
    assert ours.status.code == Code.OK
    assert (await victim.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())).status.code == Code.OK
    for stream in (settings, stolen):
        await stream.call.done_writing()


async def answers_about(mine: Client, topic: str) -> list[tuple[int, str]]:
    """The status of each call that has a topic."""
    resource, group = v2.Resource(name=topic), v2.Resource(name="G")
    queue = v2.MessageQueue(topic=resource, id=0, broker=v2.Broker(name="broker-0"))
    acked = v2.AckMessageRequest(
        group=group, topic=resource, entries=[v2.AckMessageEntry(message_id="m", receipt_handle=HANDLE)]
    )
    change = v2.ChangeInvisibleDurationRequest(
        group=group, topic=resource, receipt_handle=HANDLE, message_id="m", invisible_duration=duration(20_000)
    )
    forward = v2.ForwardMessageToDeadLetterQueueRequest(
        group=group, topic=resource, receipt_handle=HANDLE, message_id="m", max_delivery_attempts=1
    )
    asked = [
        await mine.send(topic, b"x"),
        await mine.ask("QueryRoute", v2.QueryRouteRequest(topic=resource)),
        await mine.ask("QueryAssignment", v2.QueryAssignmentRequest(topic=resource, group=group)),
        await mine.ask("AckMessage", acked),
        await mine.ask("ChangeInvisibleDuration", change),
        await mine.ask("ForwardMessageToDeadLetterQueue", forward),
        await mine.ask("GetOffset", v2.GetOffsetRequest(group=group, message_queue=queue)),
        await mine.ask("UpdateOffset", v2.UpdateOffsetRequest(group=group, message_queue=queue, offset=1)),
        await mine.ask("QueryOffset", v2.QueryOffsetRequest(message_queue=queue)),
        await mine.ask("RecallMessage", v2.RecallMessageRequest(topic=resource, recall_handle="x")),
        await mine.ask("EndTransaction", v2.EndTransactionRequest(topic=resource, message_id="m", transaction_id="t")),
        (await mine.receive(receive(topic, "G", "broker-0")))[0],
    ]
    return [(answer.status.code, answer.status.message.replace(topic, "TOPIC")) for answer in asked]


async def test_nobody_learns_whether_a_topic_exists_that_they_may_not_use(channel: grpc.aio.Channel) -> None:
    mine = client(channel, ALICE)
    there = await answers_about(mine, "Theirs")
    assert {code for code, _ in there} == {Code.UNAUTHORIZED}
    assert there == await answers_about(mine, "Nothing")


@pytest.mark.parametrize("name", ["%RETRY%Other", "%DLQ%Other", "%RETRY%Other_Ours"])
async def test_topics_of_groups_belong_to_them(channel: grpc.aio.Channel, name: str) -> None:
    refused = await answers_about(client(channel, ALICE), name)
    assert Code.OK not in {code for code, _ in refused}


async def test_messages_of_another_topic_are_neither_sent_beside_ones_own_nor_ended_nor_taken_back(
    cluster: Cluster, channel: grpc.aio.Channel
) -> None:
    mine, theirs = client(channel, ALICE), client(channel, ROOT)
    both = v2.SendMessageRequest(messages=[message("Ours", b"mine"), message("Theirs", b"smuggled")])
    assert (await mine.ask("SendMessage", both)).status.code == Code.MESSAGE_CORRUPTED
    security = Security(Credentials("root-account", "secret-of-root"))
    async with Admin(instance=ClientInstance(cluster.namesrv_address, security=security)) as admin:
        for topic, kind in (("Halves", "TRANSACTION"), ("Later", "DELAY")):
            await admin.create_topic(topic)
            cluster.broker(0).topics.table[topic].attributes = {"message.type": kind}
        await attack(cluster, mine, theirs)
        stats = await admin.topic_stats("Halves")
        assert sum(queue.max_offset for queue in stats.offset_table.values()) == 0
        (address,) = (await admin.masters()).values()
        assert len(await admin.open_transactions(address)) == 1


async def attack(cluster: Cluster, mine: Client, theirs: Client) -> None:
    half = (await theirs.send("Halves", b"half", message_type=v2.MessageType.TRANSACTION)).entries[0]
    due = timestamp(cluster.clock.now_ms() + 3_600_000)
    delayed = await theirs.send("Later", b"later", message_type=v2.MessageType.DELAY, delivery_timestamp=due)
    end = v2.EndTransactionRequest(
        topic=T,
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=v2.TransactionResolution.COMMIT,
    )
    assert (await mine.ask("EndTransaction", end)).status.code != Code.OK
    recall = v2.RecallMessageRequest(topic=T, recall_handle=delayed.entries[0].recall_handle)
    assert (await mine.ask("RecallMessage", recall)).status.code != Code.OK
    recall = v2.RecallMessageRequest(topic=v2.Resource(name="Later"), recall_handle=delayed.entries[0].recall_handle)
    assert (await theirs.ask("RecallMessage", recall)).status.code == Code.OK
