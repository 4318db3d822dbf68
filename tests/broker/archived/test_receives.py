"""A thousand messages, most of which only the archive has: clients get exactly a thousand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from tests.broker.archived.archiving import archive_store, delete_log_files, is_readable
from tests.helpers.waiting import until
from tests.proxy.client import Client, receive
from tests.proxy.test_consumer import ack

from cometmq.client import Message
from cometmq.proxy.converter import duration
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import Cluster

COUNT = 1_000
SMALL_LOG = {"mappedFileSizeCommitLog": "1048576", "maxMessageSize": "65536"}
BODIES = [b"%05d" % number * 800 for number in range(COUNT)]


@dataclass
class Receiver:
    """A client of gRPC, and the cluster that it receives from."""

    cluster: Cluster
    client: Client

    async def received(self, **fields: object) -> list[v2.Message]:
        answers = await self.client.receive(receive("T", "G", "broker-0", **fields))
        return [answer.message for answer in answers if answer.WhichOneof("content") == "message"]


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    lake = tmp_path / "lake"
    keys = {**SMALL_LOG, "archive.read": str(lake)}
    async with Cluster(grpc=True, data=tmp_path / "data", broker_keys=keys) as cluster:
        await cluster.create_topic("T", queues=1)
        for body in BODIES:
            await cluster.send(Message("T", body, tags="even" if body[4] % 2 == 0 else "odd"))
        archive_store(cluster.store_root(0), lake, broker_name="broker-0")
        await until(lambda: delete_log_files(cluster.broker(0)))
        await until(lambda: cluster.broker(0).store.extent("T", 0)[0] > COUNT // 2)
        await cluster.restart_broker(0)
        await until(lambda: is_readable(cluster.broker(0)))
        async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
            client = Client(channel)
            await client.subscribe("G", "T")
            cluster.broker(0).offsets.set_offset("G", "T", 0, 0)  # a new group of this protocol begins at the end
            yield Receiver(cluster, client)


async def test_a_client_of_5_receives_exactly_a_thousand(receiver: Receiver) -> None:
    found: list[v2.Message] = []
    while len(found) < COUNT:
        messages = await receiver.received()
        assert messages, "a receive waits for archived messages"
        assert (await ack(receiver.client, *messages)).status.code == Code.OK
        found += messages
    assert [message.body for message in found] == BODIES
    assert await receiver.received() == []


async def test_a_received_message_comes_again_and_can_be_a_dead_letter(receiver: Receiver) -> None:
    first, second = await receiver.received(batch_size=2)
    handle = first.system_properties.receipt_handle
    again: list[v2.Message] = []
    answer = await receiver.client.ask(
        "ChangeInvisibleDuration",
        v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name="G"),
            topic=v2.Resource(name="T"),
            receipt_handle=handle,
            invisible_duration=duration(1_000),
        ),
    )
    assert answer.status.code == Code.OK
    while not again:
        again = [
            message
            for message in await receiver.received(batch_size=1)
            if message.system_properties.message_id == first.system_properties.message_id
        ]
    assert (again[0].body, again[0].system_properties.delivery_attempt) == (first.body, 2)
    dead = v2.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="G"),
        topic=v2.Resource(name="T"),
        receipt_handle=second.system_properties.receipt_handle,
        message_id=second.system_properties.message_id,
    )
    answer = await receiver.client.ask("ForwardMessageToDeadLetterQueue", dead)
    assert answer.status.code == Code.OK
    assert receiver.cluster.broker(0).store.extent("%DLQ%G", 0) == (0, 1)
